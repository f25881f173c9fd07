"""Tools: typed Python functions that the model may call, and environments built of them."""

import asyncio
import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from envhub.environment import Reset, Step
from envhub.errors import UserError, did_you_mean
from envhub.messages import Action, ActionLike, Message, Observation, ToolCall, ToolSpec
from envhub.offload import ThreadHost
from envhub.single_turn import TaskEnvironment
from envhub.tasks import Task

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__envhub_tool__"


def tool(function: F) -> F:
    """Mark a method of a `ToolEnvironment` as a tool. Its signature and docstring are what the model is shown."""
    setattr(function, _MARK, True)
    return function


@dataclass(frozen=True, slots=True)
class Tool:
    """A callable with its specification and the model that checks its arguments."""

    function: Callable[..., Any]
    spec: ToolSpec
    arguments: type[BaseModel]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Tool":
        """Make a tool of a typed function.

        Every parameter needs an annotation. The description is the docstring's text before its `Args:`; a line
        `name: text` under `Args:` describes a parameter. Raises UserError naming the function and the parameter.
        """
        name = function.__name__
        hints = typing.get_type_hints(function, include_extras=True)
        description, notes = _parse_docstring(inspect.getdoc(function) or "")
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise UserError(f"tool {name!r}: parameter {parameter.name!r} must be an ordinary named parameter")
            if parameter.name not in hints:
                raise UserError(f"tool {name!r}: parameter {parameter.name!r} needs a type annotation")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], Field(default, description=notes.get(parameter.name)))
        model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema()
        schema.pop("title", None)
        for entry in schema.get("properties", {}).values():
            entry.pop("title", None)
        return cls(function, ToolSpec(name, description, schema), model)

    async def call(self, arguments: Mapping[str, Any], host: ThreadHost, deadline: float) -> str | Message:
        """Validate the arguments and run the function (plain functions in the host's thread).

        Raises ValueError naming what is wrong with the arguments; whatever the function raises travels on.
        """
        try:
            checked = self.arguments.model_validate(dict(arguments))
        except ValidationError as problem:
            raise ValueError(_explain(problem, self.arguments)) from None
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        if inspect.iscoroutinefunction(self.function):
            async with asyncio.timeout(deadline):
                result = await self.function(**values)
        else:
            what = f"tool {self.spec.name!r}"
            result = await host.call(self.function, deadline=deadline, what=what, **values)
        return result if isinstance(result, str | Message) else json.dumps(result, ensure_ascii=False, default=str)


class ToolError(Exception):
    """Raised by a tool to tell the model what went wrong. It is an answer to the model, not a fault."""


class ToolEnvironment(TaskEnvironment):
    """A task that the model solves by calling tools, and ends by answering without a call.

    Tools are the methods marked with `@tool` and the functions in the class attribute `functions`. A malformed call, an
    unknown tool, wrong arguments, and a `ToolError` or `ValueError` of the tool are answered to the model as a tool
    message that begins with `error:`; anything else that a tool raises is an environment fault. Rewards score the final
    answer.
    """

    functions: ClassVar[tuple[Callable[..., Any], ...]] = ()
    tool_seconds: ClassVar[float] = 30.0

    @functools.cached_property
    def toolbox(self) -> dict[str, Tool]:
        """The tools by name."""
        marked = [
            getattr(self, name) for name in dir(type(self)) if getattr(getattr(type(self), name, None), _MARK, False)
        ]
        tools = [Tool.of(function) for function in (*self.functions, *marked)]
        return {item.spec.name: item for item in tools}

    @functools.cached_property
    def _tool_thread(self) -> ThreadHost:
        return ThreadHost(f"{self.name}-tools")

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Reset:
        task = self.begin(options)
        await self.prepare(task)
        return Observation(self.messages, tuple(item.spec for item in self.toolbox.values())), {"task": task.id}

    async def prepare(self, task: Task) -> None:
        """Set up the world for a task; subclasses override it where there is one."""

    async def step(self, action: ActionLike) -> Step:
        action = Action.of(action)
        if not action.tool_calls and action.parse_error is None:
            total, info = await self.score(action)
            return Observation(), total, True, False, info
        if action.tool_calls:
            answers = tuple([await self._answer(call) for call in action.tool_calls])
        else:
            answers = (Message("user", f"error: the tool call could not be read: {action.parse_error}"),)
        self.messages = (*self.messages, action.message, *answers)
        errors = sum(message.text.startswith("error:") for message in answers)
        return Observation(answers), 0.0, False, False, {"tool_calls": len(action.tool_calls), "tool_errors": errors}

    async def _answer(self, call: ToolCall) -> Message:
        found = self.toolbox.get(call.name)
        if found is None:
            hint = did_you_mean(call.name, self.toolbox)
            text: str | Message = (
                f"error: there is no tool {call.name!r}; the tools are {', '.join(self.toolbox)}{hint}"
            )
        elif call.arguments is None:
            text = f"error: the arguments of {call.name!r} could not be read: {call.error}"
        else:
            try:
                text = await found.call(call.arguments, self._tool_thread, self.tool_seconds)
            except (ValueError, ToolError) as problem:
                text = f"error: {call.name}: {problem}"
        content = text.content if isinstance(text, Message) else text
        return Message("tool", content, tool_call_id=call.id, name=call.name)

    def close(self) -> None:
        if "_tool_thread" in self.__dict__:
            self._tool_thread.close()


def _parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    description, _, rest = text.partition("Args:")
    notes: dict[str, str] = {}
    for line in rest.splitlines():
        name, separator, note = line.strip().partition(":")
        if separator and name.isidentifier():
            notes[name] = note.strip()
    return description.strip(), notes


def _explain(problem: ValidationError, model: type[BaseModel]) -> str:
    parts = []
    for error in problem.errors():
        key = ".".join(str(part) for part in error["loc"])
        hint = did_you_mean(key, model.model_fields) if error["type"] == "extra_forbidden" else ""
        parts.append(f"argument {key!r}: {error['msg']}{hint}")
    return "; ".join(parts)
