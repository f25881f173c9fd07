"""Written conversations: read from JSON lines, and recorded as the tokens that an executor would have recorded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envhub.agents.rendering import ChatTemplateRenderer
from envhub.agents.rendering.base import TemplateError
from envhub.errors import DataError, did_you_mean
from envhub.messages import ROLES, Message, ToolSpec
from envhub.strict_json import read_line
from envhub.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to train on. `trained` says for each message whether its tokens are; `place` names file and line."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    trained: tuple[bool, ...] = ()
    place: str = ""


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a file with one JSON object a line; blank lines are passed over, other columns ignored.

    `messages` is a list in OpenAI's chat format. Assistant messages are trained, but for those with `"weight": 0`.
    Raises DataError naming the file and the line.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _conversation(line, f"{path}, line {number}", first=number == 1)
    except OSError as problem:
        raise DataError(f"cannot read {path}: {problem.strerror}") from problem


def record(renderer: ChatTemplateRenderer, conversation: Conversation) -> Trajectory:
    """The token record of a conversation: its trained messages as sampled segments, all else as rendered ones.

    The renderer is asked turn by turn, as an executor asks it, so that a template that rewrites its history forks the
    record. Logprobs are 0. What follows the last assistant message is left out. Raises TemplateError.
    """
    messages, tools = conversation.messages, conversation.tools
    places = [at for at, message in enumerate(messages) if message.role == "assistant"]
    trajectory = Trajectory()
    leaf = trajectory.add_rendered(None, renderer.render(messages[: places[0]], tools), turn=0)
    for turn, (at, following) in enumerate(zip(places, [*places[1:], None], strict=True)):
        ids = answer_ids(renderer, messages[:at], messages[at], tools)
        if conversation.trained[at]:
            zeros, versions = [0.0] * len(ids), [0] * len(ids)
            given = trajectory.path_ids(leaf)
            leaf = trajectory.add_sampled(leaf, given, ids, zeros, versions, turn=turn, finish_reason="stop")
        else:
            leaf = trajectory.add_rendered(leaf, ids, turn=turn)
        if following is None:
            break
        new = renderer.continue_from(messages[: at + 1], ids, messages[at + 1 : following], tools)
        if new.token_ids is not None:
            leaf = trajectory.add_rendered(leaf, new.token_ids, turn=turn + 1)
        else:
            whole = renderer.render(messages[:following], tools)
            leaf = trajectory.fork(leaf, whole, turn=turn + 1, cause=new.cause)
    return trajectory


def answer_ids(
    renderer: ChatTemplateRenderer, history: Sequence[Message], answer: Message, tools: Sequence[ToolSpec] = ()
) -> list[int]:
    """The ids that a model would sample to give `answer` after `history`: the template's text for it, and the end token.

    Raises TemplateError for a template that opens an answer with what a written answer has not, or drops its reasoning.
    """
    before = renderer.text(history, tools)
    whole = renderer.text([*history, answer], tools, opening=False)
    if not whole.startswith(before):
        raise TemplateError(
            f"the chat template of {renderer.model} does not write an answer after the text with which it opens one "
            f"(…{before[-40:]!r}), so none can be trained; use a template that does"
        )
    said = whole[len(before) :]
    if renderer.proof.end_of_turn_id is not None:
        said = said.partition(renderer.proof.end_of_turn)[0]
    if answer.reasoning and renderer.escape(answer.reasoning.strip()) not in said:
        raise TemplateError(
            f"the chat template of {renderer.model} drops the reasoning of an answer, so it cannot be trained; leave "
            "reasoning out, or use a template that writes it"
        )
    end = renderer.proof.end_of_turn_id
    return renderer.encode(said) + (list(renderer.stop_token_ids[:1]) if end is None else [end])


def _conversation(line: bytes, place: str, *, first: bool) -> Conversation:
    row = read_line(line, place, first=first)
    if not isinstance(row, dict):
        raise DataError(f"{place}: a conversation is an object with `messages`, not {type(row).__name__}")
    if "messages" not in row:
        near = next((f"; rename {key!r} if it holds them" for key in row if did_you_mean(key, ("messages",))), "")
        hint = "; rollouts are trained with --from-rollouts" if "trajectory" in row else near
        raise DataError(f"{place}: no column 'messages' (it has {', '.join(map(str, row)) or 'none'}){hint}")
    given = row["messages"]
    if not isinstance(given, list) or not given:
        raise DataError(f"{place}: messages is a list of at least one message, not {_shown(given)}")
    messages = [_message(value, f"{place}: messages[{at}]") for at, value in enumerate(given)]
    trained = [_is_trained(value, f"{place}: messages[{at}]") for at, value in enumerate(given)]
    if not any(trained):
        raise DataError(f"{place}: no assistant message to train on")
    if messages[0].role == "assistant":
        raise DataError(f"{place}: it begins with the assistant; put a user or system message before")
    return Conversation(tuple(_named(messages)), _tools(row.get("tools"), place), tuple(trained), place)


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, dict):
        raise DataError(f"{place}: a message is an object, not {_shown(value)}")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        hint = did_you_mean(role, ROLES) if isinstance(role, str) else ""
        raise DataError(f"{place}: role is one of {', '.join(ROLES)}, not {role!r}{hint}")
    if role != "assistant" and value.get("tool_calls"):
        raise DataError(f"{place}: only an assistant message has tool_calls, not one of role {role!r}")
    try:
        message = Message.from_dict(value)
    except KeyError as problem:
        raise DataError(f"{place}: {problem} is missing") from None
    except (ValueError, TypeError, AttributeError) as problem:
        raise DataError(f"{place}: not in OpenAI's chat format: {problem}") from None
    for call in message.tool_calls:
        if call.error is not None:
            raise DataError(f"{place}: the call of tool {call.name!r}: {call.error}")
    return message


def _is_trained(value: Mapping[str, Any], place: str) -> bool:
    weight = value.get("weight")
    if weight not in (None, 0, 1):
        raise DataError(f"{place}: weight is 0 or 1, not {_shown(weight)}")
    return bool(value["role"] == "assistant" and weight != 0)


def _named(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages, the tools' answers with the name of the tool that was called."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        if message.role == "tool" and message.name is None and message.tool_call_id in names:
            yield replace(message, name=names[message.tool_call_id])
        else:
            yield message


def _tools(value: Any, place: str) -> tuple[ToolSpec, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DataError(f"{place}: tools is a list, not {_shown(value)}")
    out = []
    for at, tool in enumerate(value):
        try:
            out.append(ToolSpec.from_openai(tool))
        except KeyError as problem:
            raise DataError(f"{place}: tools[{at}]: {problem} is missing") from None
        except (TypeError, AttributeError) as problem:
            raise DataError(f"{place}: tools[{at}]: not in OpenAI's format: {problem}") from None
    return tuple(out)


def _shown(value: Any) -> str:
    return repr(value)[:80]
