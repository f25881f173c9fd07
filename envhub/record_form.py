"""The form of a rollout's record in JSON: which fields it has and what each may hold.

A form is a function that takes a value and raises `Wrong` where the value does not fit; forms of lists and objects are
made of the forms of what they hold. What environments put into `info`, `config` and the like may be anything.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from envhub.guard import shown
from envhub.messages import ROLES
from envhub.outcome import Outcome
from envhub.trajectory import RENDERED, SAMPLED

Form: TypeAlias = Callable[[Any], None]


class Wrong(ValueError):
    """A value does not fit its form. The message names the field, what it should hold and what it holds."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.lstrip('.')}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def within(self, step: str) -> "Wrong":
        """The same problem, seen from one level up."""
        return Wrong(self.problem, step + self.path)


def _refused(expected: str, value: Any) -> Wrong:
    return Wrong(f"expected {expected}, found {shown(value, 80)}")


def anything(value: Any) -> None:
    """Any JSON value."""


def text(value: Any) -> None:
    """A string."""
    if not isinstance(value, str):
        raise _refused("a text", value)


def integer(value: Any) -> None:
    """A whole number; a truth value is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refused("a whole number", value)


def count(value: Any) -> None:
    """A whole number from 0."""
    integer(value)
    if value < 0:
        raise _refused("a whole number from 0", value)


def number(value: Any) -> None:
    """A number that is finite as a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _refused("a number", value)
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise _refused("a finite number", value)


def flag(value: Any) -> None:
    """true or false."""
    if not isinstance(value, bool):
        raise _refused("true or false", value)


def one_of(allowed: Collection[str]) -> Form:
    """One of some words."""

    def check(value: Any) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise _refused(f"one of {', '.join(allowed)}", value)

    return check


def maybe(form: Form) -> Form:
    """null, or what fits `form`."""

    def check(value: Any) -> None:
        if value is not None:
            form(value)

    return check


def list_of(form: Form) -> Form:
    """A list of what fits `form`."""

    def check(value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise _refused("a list", value)
        for position, item in enumerate(value):
            try:
                form(item)
            except Wrong as problem:
                raise problem.within(f"[{position}]") from None

    return check


def mapping_of(form: Form) -> Form:
    """An object of any keys whose values fit `form`."""

    def check(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise _refused("an object", value)
        for key, item in value.items():
            try:
                form(item)
            except Wrong as problem:
                raise problem.within(f".{key}") from None

    return check


def fields(required: Mapping[str, Form], optional: Mapping[str, Form] | None = None, *, closed: bool = True) -> Form:
    """An object with these fields, and where it is `closed`, no others."""
    known = {**required, **(optional or {})}

    def check(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise _refused("an object", value)
        for name in required:
            if name not in value:
                raise Wrong("is missing", f".{name}")
        for name, item in value.items():
            if name in known:
                try:
                    known[name](item)
                except Wrong as problem:
                    raise problem.within(f".{name}") from None
            elif closed:
                raise Wrong("is no field of a record", f".{name}")

    return check


_object = mapping_of(anything)


def _content(value: Any) -> None:
    if not isinstance(value, str | None):
        list_of(_part)(value)


def _part(value: Any) -> None:
    fields({"type": one_of(("text", "image_url"))}, closed=False)(value)
    form: Form = text if value["type"] == "text" else fields({"url": text}, closed=False)
    fields({value["type"]: form}, closed=False)(value)


def _prompt(value: Any) -> None:
    if not isinstance(value, str):
        list_of(_MESSAGE)(value)


_CALL = fields(
    {"function": fields({"name": text}, closed=False)},
    {"id": maybe(text), "raw": text, "error": maybe(text)},
    closed=False,
)
_MESSAGE = fields(
    {"role": one_of(ROLES)},
    {
        "content": _content,
        "tool_calls": maybe(list_of(_CALL)),
        "tool_call_id": maybe(text),
        "name": maybe(text),
        "reasoning": maybe(text),
        "reasoning_content": maybe(text),
    },
    closed=False,
)
_TOOL = fields(
    {"function": fields({"name": text}, {"description": text, "parameters": _object}, closed=False)}, closed=False
)
_OBSERVATION = fields({"messages": list_of(_MESSAGE)}, {"tools": maybe(list_of(_TOOL))})
_ACTION = fields(
    {"text": text},
    {
        "tool_calls": maybe(list_of(_CALL)),
        "reasoning": maybe(text),
        "finish_reason": maybe(text),
        "parse_error": maybe(text),
    },
)
_TURN = fields(
    {"action": _ACTION, "observation": maybe(_OBSERVATION)},
    {
        "reward": number,
        "terminated": flag,
        "truncated": flag,
        "info": _object,
        "prompt_tokens": count,
        "sampled_tokens": count,
        "engine_seconds": number,
        "environment_seconds": number,
    },
)
_SEGMENT = fields(
    {
        "parent": maybe(count),
        "origin": one_of((RENDERED, SAMPLED)),
        "token_ids": list_of(count),
        "turn": integer,
    },
    {
        "logprobs": list_of(number),
        "versions": list_of(integer),
        "finish_reason": maybe(text),
        "images": count,
    },
)
_TRAJECTORY = fields(
    {
        "segments": list_of(_SEGMENT),
        "forks": list_of(fields({"turn": integer, "cause": text}, {"position": integer})),
    }
)
_TASK = fields(
    {"prompt": _prompt},
    {"answer": anything, "info": _object, "id": text, "split": text, "index": integer, "seed": integer},
)
_RECORD = fields(
    {
        "environment": text,
        "task": _TASK,
        "limits": mapping_of(maybe(number)),
        "outcome": one_of([outcome.value for outcome in Outcome]),
        "opening": maybe(_OBSERVATION),
        "turns": list_of(_TURN),
        "trajectory": _TRAJECTORY,
    },
    {
        "version": count,
        "id": text,
        "config": _object,
        "content_hash": maybe(text),
        "target": text,
        "group": text,
        "member": count,
        "attempt": count,
        "model": text,
        "sampling": _object,
        "reward": number,
        "components": mapping_of(number),
        "fault": maybe(text),
        "error": maybe(text),
        "started": number,
        "seconds": number,
        "info": _object,
    },
)


def check_record(value: Any, version: int) -> None:
    """Check the JSON form of a rollout that this `version` of the form can read.

    Raises ValueError naming the first field that is missing, unknown, or holds what it cannot; and for a later version.
    """
    if not isinstance(value, Mapping):
        raise _refused("an object", value)
    found = value.get("version", 0)
    if isinstance(found, int) and found > version:
        raise ValueError(f"a rollout record of version {shown(found)}; this envhub reads up to {version}")
    _RECORD(value)
