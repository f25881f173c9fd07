"""`envhub eval`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel, ConfigDict, Field, model_validator

from envhub import task_host
from envhub.agents.engines.base import BatchSize, Seed, Temperature, TokenCount, TurnCount
from envhub.cli.options import given, options_of
from envhub.environment import validate_config
from envhub.errors import DataError, UserError
from envhub.records import JsonlWriter, RolloutStore, RunFolder, numbered_folder, read_rollouts, reconciled
from envhub.records.jsonl import drop_lines, numbered_rollouts
from envhub.rollout import Rollout
from envhub.strict_json import dumps

if TYPE_CHECKING:
    from envhub.agents.session import Agent

_MOST_ROLLOUTS = 1_000_000
_SILENT = 10.0  # seconds at least between two lines that say how far it is


class EvalConfig(BaseModel):
    """Everything that defines an evaluation; saved with it, so that it can be gone on with."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    env: str = Field(description="environment: an id, a file, or file.py:Class")
    config: dict[str, Any] = Field(default_factory=dict, description="configuration of the environment")
    model: str = Field(description="scripted:POLICY, openai:NAME, an alias (smollm2, tiny), a folder or a checkpoint")
    engine: str = Field("auto", description="what runs weights: auto, vllm, transformers or a plugin's")
    engine_options: dict[str, Any] = Field(default_factory=dict, description="options of the engine")
    parser: str = Field("auto", description="parser of tool calls and reasoning")
    split: str = Field("eval", description="split of the task set")
    tasks: int = Field(32, ge=0, le=_MOST_ROLLOUTS, description="how many tasks (0: all of a finite split)")
    samples: int = Field(1, ge=1, le=10_000, description="samples of each task")
    seed: Seed = Field(0, description="data seed")
    temperature: Temperature | None = Field(None, description="default: 0 for one sample of a task, 1 for several")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus of the distribution")
    top_k: int = Field(0, ge=0, le=1_000_000, description="most likely tokens to choose from (0: all)")
    max_turns: TurnCount | None = Field(None, description="turns of an episode (default: the environment's)")
    max_turn_tokens: TokenCount | None = Field(
        None, description="sampled tokens of a turn (default: the environment's)"
    )
    max_episode_tokens: TokenCount | None = Field(None, description="sampled tokens of an episode")
    concurrency: BatchSize = Field(32, description="rollouts that run at once")
    retries: int = Field(2, ge=0, le=1_000, description="new attempts after a fault")
    pass_reward: float = Field(
        1.0, description="reward from which a rollout passes, where the environment does not say"
    )

    @model_validator(mode="after")
    def _fits(self) -> "EvalConfig":
        if self.tasks * self.samples > _MOST_ROLLOUTS:
            raise ValueError(_too_many(self.tasks, self.samples))
        return self


def _too_many(tasks: int, samples: int) -> str:
    return f"tasks x samples is at most {_MOST_ROLLOUTS}, not {tasks} x {samples}; ask for less of one of them"


_REMEDY = "give another --output, or delete that folder"
# What may differ when an evaluation is gone on with: it changes how the rollouts are made, not which.
_FREE = ("concurrency", "retries", "pass_reward", "engine", "engine_options")


def _run(output: Path | None, k: str | None, baseline: Path | None, as_json: bool, **values: Any) -> int:
    config: EvalConfig = validate_config(EvalConfig, given(EvalConfig, values), "the evaluation")
    ks = _numbers(k)
    if ks and max(ks) > config.samples:
        raise UserError(f"pass@{max(ks)} needs --samples {max(ks)} or more, not {config.samples}")
    path = output or _next_folder(config)
    resume = (path / "config.json").is_file()
    agent = None if resume else _prepared(config)  # what cannot be used leaves no folder
    say = (lambda text: None) if as_json else click.echo
    with RunFolder.open(path, resume=resume, what="evaluation", remedy=f"it holds no evaluation: {_REMEDY}") as folder:
        file = path / "rollouts.jsonl"
        if resume:
            _check_kind(folder)
        else:
            folder.write_config(config.model_dump(mode="json"))
        earlier = load_evaluation(baseline) if baseline is not None else None
        done = _read_done(file, config, folder)
        with JsonlWriter(file) as writer:
            folder.write_config(config.model_dump(mode="json"))
            store, repaired = reconciled(path / "rollouts.sqlite", done, phase="eval")
            with store:
                if repaired:
                    _note(repaired)
                rollouts = task_host.run(_evaluate(config, agent, done, writer, store, say))
        return _report(config, rollouts, path, ks, (baseline, earlier), as_json)


def _prepared(config: EvalConfig) -> "Agent":
    from envhub.agents.session import prepare_agent
    from envhub.registry import spec as find_spec

    find_spec(config.env)
    return prepare_agent(config.model, config.engine, options=config.engine_options, parser=config.parser)


async def _evaluate(
    config: EvalConfig, agent: "Agent | None", done: list[Rollout], writer: JsonlWriter, store: RolloutStore,
    say: Callable[[str], Any],
) -> list[Rollout]:  # fmt: skip
    from envhub.agents.engines import SamplingParams
    from envhub.agents.evaluation import EvalPlan, choose_tasks, evaluate, still_valid
    from envhub.agents.executors import Watchdog
    from envhub.agents.session import started
    from envhub.driver import Driver
    from envhub.registry import spec as find_spec

    found = find_spec(config.env)
    driver = Driver(found, config.config)
    limits = driver.limits.replace(
        max_turns=config.max_turns, max_turn_tokens=config.max_turn_tokens, max_episode_tokens=config.max_episode_tokens
    )
    temperature = config.temperature if config.temperature is not None else float(config.samples > 1)
    sampling = SamplingParams(temperature=temperature, top_p=config.top_p, top_k=config.top_k)
    tasks = choose_tasks(driver.tasks, config.split, config.tasks, config.seed)
    plan = EvalPlan(
        found, config.config, config.split, config.tasks, config.samples, config.seed, sampling, limits,
        config.concurrency, config.retries,
    )  # fmt: skip
    total = len(tasks) * config.samples
    if total > _MOST_ROLLOUTS:
        raise UserError(_too_many(len(tasks), config.samples))
    kept = still_valid(plan, tasks, done)
    if len(kept) == total:
        say(f"all {total} rollouts are there already")
        return kept
    if kept:
        say(f"{len(kept)} of {total} rollouts are there already")
    others = ", ".join(
        f"{driver.tasks.size(split)} are in {split}" for split in driver.tasks.splits if split != config.split
    )
    size = driver.tasks.size(config.split)
    where = "" if size is None else f" (of {size} in split {config.split}{f'; {others}' if others else ''})"
    say(f"evaluating {config.model} on {found.id}: {len(tasks)} tasks x {config.samples}{where}")
    finished, told = len(kept), time.monotonic()

    def record(rollout: Rollout) -> None:
        nonlocal finished, told
        finished += 1
        writer.write(rollout.to_dict())
        store.add(rollout, phase="eval")
        if time.monotonic() - told >= _SILENT:
            told = time.monotonic()
            say(f"{finished} of {total} rollouts")

    agent = agent or _prepared(config)
    say(f"starting engine {agent.engine.name}")
    async with started(agent), Watchdog():
        return await evaluate(agent.executor, plan, done=done, on_rollout=record)


def _report(
    config: EvalConfig, rollouts: list[Rollout], path: Path, ks: list[int],
    baseline: tuple[Path | None, list[Rollout] | None], as_json: bool,
) -> int:  # fmt: skip
    from envhub.agents.evaluation import compare, summarise
    from envhub.home import write_atomically

    summary = summarise(rollouts, ks=ks, pass_reward=config.pass_reward)
    values = summary.to_dict()
    first, earlier = baseline
    if earlier is not None:
        comparison = compare(earlier, rollouts)
        if not comparison.tasks:
            raise UserError(f"{first} and this evaluation share no scored task")
        values["baseline"] = {"path": str(first), "difference": comparison.difference.mean, "tasks": comparison.tasks,
                              "low": comparison.difference.low, "high": comparison.difference.high}  # fmt: skip
    write_atomically(path / "summary.json", dumps(values, indent=2) + "\n")
    if as_json:
        click.echo(dumps({**values, "folder": str(path)}, indent=2))
    else:
        from envhub.cli.tables import print_comparison, print_summary

        print_summary(summary, f"{config.model} on {config.env} ({config.split})")
        if earlier is not None:
            print_comparison(comparison, str(first), str(path))
        click.echo(f"results: {path}")
    return 0 if summary.scored else 1


def _note(text: str) -> None:
    click.echo(f"envhub: note: {text}", err=True)


def load_evaluation(path: Path) -> list[Rollout]:
    """The rollouts of an evaluation's folder or of a rollouts.jsonl. Raises UserError."""
    file = path / "rollouts.jsonl" if path.is_dir() else path
    if not file.is_file() and (path / "metrics.jsonl").is_file():
        raise UserError(f"{path} is a training run, not an evaluation; give two folders that `envhub eval` wrote")
    if not file.is_file():
        raise UserError(f"there is no evaluation in {path}: it has no rollouts.jsonl")
    return list(read_rollouts(file))


def _check_kind(folder: RunFolder) -> None:
    fields = EvalConfig.model_fields
    found = _saved(folder).keys()
    if found - fields.keys() or {name for name, field in fields.items() if field.is_required()} - found:
        raise UserError(f"{folder.path} holds another kind of run, not an evaluation; {_REMEDY}")


def _read_done(file: Path, config: EvalConfig, folder: RunFolder) -> list[Rollout]:
    """The rollouts that are there already, after the file was rid of half a line at its end and of doubled lines."""
    from envhub.registry import spec as find_spec

    with JsonlWriter(file) as writer:
        if writer.cut:
            _note(f"{file} ended in half a line, which is dropped")
    try:
        lines = dict(numbered_rollouts(file))
    except DataError as problem:
        raise DataError(f"{problem}; delete that line, and its rollout is run again") from None
    if not lines:
        return []
    _check_same(config, folder)
    environment = find_spec(config.env).id
    for number, rollout in lines.items():
        if rollout.environment != environment:
            raise DataError(
                f"{file}, line {number}: a rollout of environment {rollout.environment!r}, in an evaluation of "
                f"{environment!r}; delete that line, or give another --output"
            )
    latest = {rollout.id: number for number, rollout in lines.items()}
    doubled = lines.keys() - latest.values()
    if doubled:
        drop_lines(file, doubled)
        _note(f"{file}: {len(doubled)} doubled lines (of one rollout id) dropped")
    return [lines[number] for number in latest.values()]


def _saved(folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.read_config()
    except UserError as problem:
        raise UserError(f"{problem}; {_REMEDY}") from None


def _check_same(config: EvalConfig, folder: RunFolder) -> None:
    before = _saved(folder)
    now = config.model_dump(mode="json")
    for key in now:
        if key not in _FREE and key in before and before[key] != now[key]:
            flag = key.replace("_", "-")
            raise UserError(
                f"the evaluation in {folder.path} was made with {flag} {before[key]!r}, not {now[key]!r}; {_REMEDY}"
            )


def _numbers(text: str | None) -> list[int]:
    try:
        numbers = [int(item) for item in (text or "").split(",") if item.strip()]
    except ValueError:
        raise UserError(f"--k takes numbers such as 1,4,8, not {text!r}") from None
    if any(number < 1 for number in numbers):
        raise UserError(f"--k takes positive numbers, not {text!r}")
    return numbers


def _next_folder(config: EvalConfig) -> Path:
    def short(text: str) -> str:
        name = Path(text).name if "/" in text else text
        return "".join(char if char.isalnum() or char in "._-" else "-" for char in name)[:60]

    return numbered_folder(Path("runs"), f"eval-{short(config.env)}-{short(config.model)}")


def _callback(environment: str, **values: Any) -> int:
    if values.get("model") is None:
        raise UserError(
            "say what to evaluate: --model scripted:oracle, --model smollm2, --model openai:NAME, or a folder"
        )
    return _run(env=environment, **values)


command = click.Command(
    "eval",
    callback=_callback,
    help="Evaluate a model on an environment. With the --output of an earlier evaluation, only what is missing is run.",
    params=[
        click.Argument(["environment"]),
        *options_of(EvalConfig, skip=("env",)),
        click.Option(
            ["--output"], type=click.Path(path_type=Path), help="folder for the results [default: runs/eval-…]"
        ),
        click.Option(["--k"], help="which pass@k to report, for example 1,4,8"),
        click.Option(["--baseline"], type=click.Path(path_type=Path), help="an earlier evaluation to compare with"),
        click.Option(["--json", "as_json"], is_flag=True, help="print JSON"),
    ],
)
