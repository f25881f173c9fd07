"""Open what plays: an engine, and for token engines its model's renderer and parser, behind one executor."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envhub.agents.engines.base import Engine
from envhub.agents.executors import Executor, MultiTurnExecutor
from envhub.agents.parsers.base import Parser
from envhub.agents.rendering.base import Renderer
from envhub.errors import UserError


@dataclass(frozen=True, slots=True)
class Agent:
    """An engine and what is needed to let it play. `model` is the name to show."""

    engine: Engine
    renderer: Renderer | None
    parser: Parser | None
    executor: Executor
    model: str


def prepare_agent(
    model: str,
    engine: str = "auto",
    *,
    options: Mapping[str, Any] | None = None,
    parser: str = "auto",
    executor: type[Executor] = MultiTurnExecutor,
) -> Agent:
    """What `started` starts: model and options are found to be good, and nothing runs. Raises UserError.

    `model` is `"scripted:POLICY"`, `"openai:NAME"`, or what `envhub.agents.models.resolve_model` takes (an alias such as
    `smollm2` or `tiny`, or a folder); `engine` says what runs weights (`auto`, `vllm`, `transformers` or a plugin's).
    `options` are the engine's.
    """
    made, renderer, chosen = _assemble(model, engine, dict(options or {}), parser)
    return Agent(made, renderer, chosen, executor(made, renderer, chosen), made.model or model)


@asynccontextmanager
async def started(agent: Agent) -> AsyncIterator[Agent]:
    """Start the engine of a prepared agent and close it at the end. Raises UserError."""
    try:
        await agent.engine.start()
        yield agent
    finally:
        await agent.engine.close()


def _assemble(
    model: str, engine: str, options: dict[str, Any], parser: str
) -> tuple[Engine, Renderer | None, Parser | None]:
    from envhub.agents.engines import make_engine
    from envhub.agents.parsers import choose_parser, get_parser

    kind, separator, rest = model.partition(":")
    if separator and kind in ("scripted", "openai"):
        if engine not in ("auto", kind):
            raise UserError(f"model {model!r} brings its own engine; it cannot run on engine {engine!r}")
        if not rest:
            example = "scripted:oracle" if kind == "scripted" else "openai:MODEL-NAME"
            raise UserError(f"model {model!r} names nothing to run; write for example {example}")
        made = make_engine(kind, rest, options=options)
        if made.speaks == "chat":
            return made, None, None
        from envhub.agents.rendering import ByteRenderer

        return made, ByteRenderer(), get_parser("hermes" if parser == "auto" else parser)

    from envhub.agents.engines import checkpoints
    from envhub.agents.models import ModelError, resolve_model
    from envhub.agents.rendering import load_renderer

    try:
        source = resolve_model(model)
    except ModelError as problem:
        earlier = checkpoints.instead_of(Path(model))
        if earlier is None:
            raise
        raise ModelError(f"{problem}, or use the earlier checkpoint {earlier}") from problem
    renderer = load_renderer(source.path)
    found = choose_parser(renderer.chat_template) if parser == "auto" else get_parser(parser)
    return make_engine(engine, str(source.path), options=options), renderer, found
