"""The form of a rollout's record in JSON: which fields it has and what each may hold.

What environments put into `info`, `config` and the like may be anything. Messages and tools may have more fields than
those here, as in the OpenAI chat format.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails

from envhub.guard import shown
from envhub.messages import Role
from envhub.outcome import Outcome

_KIND = "\0"  # begins the name of an alternative, which pydantic puts into the path of an error


class _Closed(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Open(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


Count: TypeAlias = Annotated[int, Field(ge=0)]
Object: TypeAlias = dict[Any, Any]


def _or_list(value: Any) -> str:
    return f"{_KIND}text" if isinstance(value, str) else f"{_KIND}list"


def _type(value: Any) -> str:
    return f"{_KIND}image" if isinstance(value, Mapping) and value.get("type") == "image_url" else f"{_KIND}text"


class _Url(_Open):
    url: str


class _Image(_Open):
    type: Literal["image_url"]
    image_url: _Url


class _Text(_Open):
    type: Literal["text", "image_url"]
    text: str


_Part = Annotated[Annotated[_Image, Tag(f"{_KIND}image")] | Annotated[_Text, Tag(f"{_KIND}text")], Discriminator(_type)]
_Content = Annotated[
    Annotated[str, Tag(f"{_KIND}text")] | Annotated[list[_Part], Tag(f"{_KIND}list")], Discriminator(_or_list)
]


class _CalledFunction(_Open):
    name: str


class _Call(_Open):
    function: _CalledFunction
    id: str | None = None
    raw: str = ""
    error: str | None = None


class _Message(_Open):
    role: Role
    content: _Content | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _OfferedFunction(_Open):
    name: str
    description: str | None = None
    parameters: Object | None = None


class _Tool(_Open):
    function: _OfferedFunction


class _Observation(_Closed):
    messages: list[_Message]
    tools: list[_Tool] | None = None


class _Action(_Closed):
    text: str
    tool_calls: list[_Call] | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    parse_error: str | None = None


class _Turn(_Closed):
    action: _Action
    observation: _Observation | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Object = {}
    prompt_tokens: Count = 0
    sampled_tokens: Count = 0
    engine_seconds: float = 0.0
    environment_seconds: float = 0.0


class _Segment(_Closed):
    parent: Count | None
    origin: Literal["rendered", "sampled"]
    token_ids: list[Count]
    turn: int
    logprobs: list[float] = []
    versions: list[int] = []
    finish_reason: str | None = None
    images: Count = 0


class _Fork(_Closed):
    turn: int
    cause: str
    position: int = 0


class _Trajectory(_Closed):
    segments: list[_Segment]
    forks: list[_Fork]


_Prompt = Annotated[
    Annotated[str, Tag(f"{_KIND}text")] | Annotated[list[_Message], Tag(f"{_KIND}list")], Discriminator(_or_list)
]


class _Task(_Closed):
    prompt: _Prompt
    answer: Any = None
    info: Object = {}
    id: str = ""
    split: str = ""
    index: int = 0
    seed: int = 0


class _Record(_Closed):
    environment: str
    task: _Task
    limits: dict[str, float | None]
    outcome: Annotated[Outcome, Field(strict=False)]
    opening: _Observation | None
    turns: list[_Turn]
    trajectory: _Trajectory
    version: Count = 0
    id: str = ""
    config: Object = {}
    content_hash: str | None = None
    target: str = ""
    group: str = ""
    member: Count = 0
    attempt: Count = 0
    model: str = ""
    sampling: Object = {}
    reward: float = 0.0
    components: dict[str, float] = {}
    fault: str | None = None
    error: str | None = None
    started: float = 0.0
    seconds: float = 0.0
    info: Object = {}


_EXPECTED = {
    "string_type": "a text",
    "string_unicode": "a text without lone surrogates",
    "int_type": "a whole number",
    "greater_than_equal": "a whole number from 0",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}
_WRONG_NAME = {"missing": "is missing", "extra_forbidden": "is no field of a record"}


def check_record(value: Any, version: int) -> None:
    """Check the JSON form of a rollout that this `version` of the form can read.

    Raises ValueError naming the first field that is missing, unknown, or holds what it cannot; and for a later version.
    """
    found = value.get("version", 0) if isinstance(value, Mapping) else 0
    if isinstance(found, int) and found > version:
        raise ValueError(f"a rollout record of version {shown(found)}; this envhub reads up to {version}")
    try:
        _Record.model_validate(value)
    except ValidationError as problem:
        raise ValueError(_said(problem.errors(include_url=False)[0])) from None


def _said(error: ErrorDetails) -> str:
    """The field, what it should hold and what it holds."""
    steps = [step for step in error["loc"] if not str(step).startswith(_KIND)]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
    kind, held = error["type"], error["input"]
    expected = _EXPECTED.get(kind, error["msg"])
    if kind == "float_type" and isinstance(held, int) and not isinstance(held, bool):
        expected = _EXPECTED["finite_number"]
    elif "expected" in (words := error.get("ctx", {})):
        expected = "one of " + words["expected"].replace("'", "").replace(" or ", ", ")
    problem = _WRONG_NAME.get(kind) or f"expected {expected}, found {shown(held, 80)}"
    return f"{path}: {problem}" if path else problem
