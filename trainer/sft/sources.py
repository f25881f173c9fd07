"""Where the samples come from: a file of conversations, an environment's oracle, or recorded rollouts."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envhub.agents.engines.base import Engine, Generation, Request
from envhub.agents.engines.loading import load_tokenizer
from envhub.agents.executors import MultiTurnExecutor
from envhub.agents.executors.pool import RolloutPool
from envhub.agents.models import ModelSource
from envhub.agents.parsers import HermesParser, choose_parser, get_parser
from envhub.agents.rendering import ChatTemplateRenderer
from envhub.driver import Driver
from envhub.errors import DataError, EngineFault, UserError
from envhub.messages import Action
from envhub.records import RolloutStore, read_rollouts
from envhub.registry import spec as find_spec
from envhub.rollout import Rollout
from envhub.specs import EnvironmentSpec
from envhub.tasks import Task
from envhub.trainer.data import TaskSampler
from envhub.trainer.sft.chat import answer_ids, read_conversations, record
from envhub.trainer.sft.config import SftConfig
from envhub.trainer.sft.examples import Examples

_SQLITE = b"SQLite format 3\x00"


@dataclass(slots=True)
class Gathered:
    """What a run trains on: the examples, `note` about where they come from, and the rollouts that were played for it."""

    examples: Examples
    note: str
    played: list[Rollout] = field(default_factory=list)


async def gather(config: SftConfig, source: ModelSource, renderer: ChatTemplateRenderer) -> Gathered:
    """Make the examples of a run. Raises UserError, a DataError where a file is at fault, when there are none."""
    vocabulary, context = model_sizes(source.path)
    if context is not None and (config.max_tokens or 0) > context:
        raise UserError(f"max_tokens {config.max_tokens} is above the context of {source.name}, {context} tokens")
    examples = Examples(config.max_tokens or context or 4096)
    played: list[Rollout] = []
    if config.data is not None:
        note = _of_conversations(config.data, renderer, examples)
    elif config.from_oracle is not None:
        spec = find_spec(config.from_oracle)
        played = await play_oracle(
            spec, renderer, env_config=config.env_config, split=config.split, tasks=config.tasks, seed=config.seed,
            parser=config.parser, concurrency=config.concurrency, model=str(source.path),
        )  # fmt: skip
        note = learn_oracle(spec, played, config.min_reward, examples)
    else:
        assert config.from_rollouts is not None
        same = SameTokenizer(source, renderer, vocabulary)
        note = _of_rollouts(config.from_rollouts, config.min_reward, same, examples)
    examples.refuse_none()
    return Gathered(examples, note, played)


def model_sizes(path: Path) -> tuple[int, int | None]:
    """The size of a model's vocabulary, and its context in tokens (None where its configuration names none)."""
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(path).get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    return int(text.vocab_size), context if isinstance(context, int) and context > 1 else None


def _of_conversations(path: Path, renderer: ChatTemplateRenderer, examples: Examples) -> str:
    count = 0
    for conversation in read_conversations(path):
        try:
            trajectory = record(renderer, conversation)
        except UserError as problem:  # of the template, or of images
            raise DataError(f"{conversation.place}: {problem}") from problem
        examples.add(trajectory, conversation.place)
        count += 1
    if not count:
        raise DataError(f"{path} holds no conversation")
    return f"{count} conversations of {path}"


class OracleEngine(Engine):
    """Says what the environment's oracle says, as the ids that the model's template has for it. Logprobs are 0."""

    name = "oracle"

    def __init__(self, renderer: ChatTemplateRenderer, model: str = "") -> None:
        self.renderer, self.model = renderer, model
        self._written = HermesParser()

    async def generate(self, request: Request) -> Generation:
        action = await request.oracle() if request.oracle is not None else None
        if action is None:
            raise EngineFault("the environment's oracle knows no action here")
        answer = self._read(action).message
        ids = answer_ids(self.renderer, request.messages, answer, request.tools)
        finish, ids = ("length" if len(ids) > request.max_tokens else "stop"), ids[: request.max_tokens]
        return Generation(tuple(ids), (0.0,) * len(ids), (0,) * len(ids), finish, request.token_ids)

    def _read(self, action: Action) -> Action:
        """Calls and reasoning that an oracle writes as text become parts of the message, which the template writes."""
        parsed = self._written.parse(action.text)
        if action.tool_calls or any(call.error for call in parsed.tool_calls):
            return action
        return Action(parsed.text, parsed.tool_calls, action.reasoning or parsed.reasoning)


async def play_oracle(
    spec: EnvironmentSpec,
    renderer: ChatTemplateRenderer,
    *,
    env_config: dict[str, Any] | None = None,
    split: str = "train",
    tasks: int = 64,
    seed: int = 0,
    parser: str = "auto",
    concurrency: int = 64,
    model: str = "",
) -> list[Rollout]:
    """Rollouts of an environment's oracle on `tasks` tasks of a split (at most all), as token records of the renderer.

    Faults come out too, by their outcome. Raises UserError for an environment without an oracle.
    """
    driver = Driver(spec, env_config)
    if not driver.has_oracle:
        raise UserError(
            f"environment {spec.id!r} has no oracle to learn from: define oracle(self), which returns the right action, "
            "or use --data or --from-rollouts"
        )
    chosen = choose_parser(renderer.chat_template) if parser == "auto" else get_parser(parser)
    executor = MultiTurnExecutor(OracleEngine(renderer, model), renderer, chosen)
    played: list[Rollout] = []
    pool = RolloutPool(executor, spec, config=env_config, concurrency=concurrency, on_rollout=played.append)
    try:
        async for _ in pool.run(_first(driver, split, tasks, seed), 1):
            pass
    finally:
        await pool.close()
    return sorted(played, key=lambda rollout: rollout.task.index)


def _first(driver: Driver, split: str, count: int, seed: int) -> Iterator[Task]:
    sampler = TaskSampler(driver.tasks, split, seed)
    yield from sampler.take(min(count, driver.tasks.size(split) or count))


def learn_oracle(spec: EnvironmentSpec, played: list[Rollout], least: float | None, examples: Examples) -> str:
    """Add what the oracle's episodes earned a reward with; returns a note. Raises UserError where none did."""
    kept = list(rewarded(played, least))
    for rollout in kept:
        examples.add(rollout.trajectory, rollout.task.id)
    note = f"{len(kept)} of {len(played)} episodes of the oracle of {spec.id}"
    if not kept:
        faults = [rollout.error or rollout.outcome.value for rollout in played if not rollout.outcome.is_scored]
        rewards = [rollout.reward for rollout in played if rollout.outcome.is_scored]
        found = f"the highest is {max(rewards):g}" if rewards else f"all {len(faults)} ended in faults: {faults[:1]}"
        raise UserError(f"no episode of the oracle of {spec.id!r} has a reward {_wanted(least)}; {found}")
    return note


def rewarded(rollouts: Iterable[Rollout], least: float | None) -> Iterator[Rollout]:
    """The scored rollouts whose reward is at least `least` (None: above 0)."""
    for rollout in rollouts:
        if rollout.outcome.is_scored and (rollout.reward > 0 if least is None else rollout.reward >= least):
            yield rollout


def _wanted(least: float | None) -> str:
    return "above 0" if least is None else f"of at least {least:g}"


def recorded(path: Path) -> Iterator[Rollout]:
    """The rollouts of a run folder, a rollouts.jsonl or a rollouts.sqlite; of a training run, only those it trained on.

    Raises DataError for what holds none or is damaged.
    """
    file = path
    if path.is_dir():
        file = next((path / name for name in ("rollouts.jsonl", "rollouts.sqlite") if (path / name).is_file()), path)
        if file is path:
            raise DataError(f"no rollouts in {path}: it has no rollouts.jsonl and no rollouts.sqlite")
    try:
        with file.open("rb") as handle:
            is_store = handle.read(len(_SQLITE)) == _SQLITE
    except OSError as problem:
        raise DataError(f"cannot read {file}: {problem.strerror}") from problem
    if not is_store:
        yield from read_rollouts(file)
        return
    with closing(RolloutStore(file, read_only=True)) as store:
        yield from store.iterate(phase="train" if store.count("train") else None)


class SameTokenizer:
    """Refuses records whose token ids are not of a model's tokenizer."""

    def __init__(self, source: ModelSource, renderer: ChatTemplateRenderer, vocabulary: int) -> None:
        self.source, self.renderer, self.vocabulary = source, renderer, vocabulary
        self._verdicts: dict[str, bool] = {str(source.path): True, source.alias: True, source.name: True}

    def check(self, rollout: Rollout) -> None:
        """Raise DataError for ids beyond the vocabulary, and for a record of a model that has another tokenizer.

        A recorded model whose folder is there is compared by its vocabulary; one that is gone, or has none, by whether
        the recorded opening is what this model's renderer makes of its messages.
        """
        highest = max((max(segment.token_ids, default=0) for segment in rollout.trajectory.segments), default=0)
        if highest >= self.vocabulary:
            raise DataError(
                f"rollout {rollout.id} of model {rollout.model or 'unknown'!r} has the token id {highest}, and "
                f"{self.source.name} knows {self.vocabulary}: it is of another tokenizer; train the model that played it"
            )
        # Records without a model may be of many, so each is compared.
        same = self._verdicts.get(rollout.model) if rollout.model else None
        if same is None:
            same = self._verdicts[rollout.model] = self._compare(rollout)
        if not same:
            player = repr(rollout.model) if rollout.model else "a model that it does not name"
            raise DataError(
                f"rollout {rollout.id} was played by {player}, whose tokens are not those of "
                f"{self.source.name}; train the model that played it, or let {self.source.name} play"
            )

    def _compare(self, rollout: Rollout) -> bool:
        folder = Path(rollout.model)
        if rollout.model and (folder / "tokenizer_config.json").is_file():
            theirs: dict[str, int] = load_tokenizer(folder).get_vocab()
            ours: dict[str, int] = self.renderer.tokenizer.get_vocab()
            return theirs == ours
        opening, segments = rollout.opening, rollout.trajectory.segments
        if opening is None or not segments:
            return False
        return self.renderer.render(opening.messages, opening.tools or ()) == list(segments[0].token_ids)


def _of_rollouts(path: Path, least: float | None, same: SameTokenizer, examples: Examples) -> str:
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    for rollout in recorded(path):
        if rollout.id in seen:
            continue
        seen.add(rollout.id)
        if not any(rewarded([rollout], least)):
            counts["unscored" if not rollout.outcome.is_scored else "low"] += 1
        elif not rollout.trajectory.action_tokens:
            counts["tokenless"] += 1
        else:
            same.check(rollout)
            examples.add(rollout.trajectory, rollout.task.id)
            counts["kept"] += 1
    if not counts["kept"]:
        raise DataError(
            f"none of the {len(seen)} rollouts in {path} can be trained: {counts['low']} have no reward {_wanted(least)}, "
            f"{counts['unscored']} are not scored, {counts['tokenless']} have no token record"
        )
    return f"{counts['kept']} of {len(seen)} rollouts of {path}"
