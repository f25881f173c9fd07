"""Engines generate: vLLM and transformers with token ids, any OpenAI-compatible endpoint, and scripts."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from envhub import plugins
from envhub.agents.engines.base import (
    Engine,
    EngineStats,
    Generation,
    Request,
    SamplingParams,
    WeightUpdate,
)
from envhub.errors import UserError, did_you_mean

__all__ = [
    "Engine",
    "EngineStats",
    "Generation",
    "Request",
    "SamplingParams",
    "WeightUpdate",
    "choose_engine",
    "make_engine",
]


def choose_engine(name: str = "auto") -> str:
    """The engine that `auto` stands for: vLLM where it is installed, else transformers; any other name is itself."""
    if name != "auto":
        return name
    return "vllm" if importlib.util.find_spec("vllm") is not None else "transformers"


def make_engine(name: str, model: str, *, options: Mapping[str, Any] | None = None) -> Engine:
    """An engine that is not started yet: bundled, or published by a plugin.

    `model` is the folder, endpoint model or policy that it runs. Raises UserError for an unknown engine or option.
    """
    name = choose_engine(name)
    made = plugins.load(plugins.ENGINES, name)
    _refuse_unknown(name, made, options or {})
    engine = made(model, **dict(options or {}))
    if not isinstance(engine, Engine):
        raise UserError(f"engine {name!r} is no envhub Engine but {type(engine).__name__}; repair its package")
    return engine


def _refuse_unknown(name: str, made: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that an engine does not take. One that takes any (`**options`) checks them itself."""
    try:
        parameters = list(inspect.signature(made).parameters.values())[1:]
    except ValueError:  # a builtin that names no parameters
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters]
    for option in options:
        if option not in known:
            raise UserError(f"engine {name!r} has no option {option!r}{did_you_mean(option, known)}")
