"""The training loop: collect, score, update, sync. Details stand one level down."""

import asyncio
import itertools
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from envhub.agents.engines.checkpoints import BEST, folder_name
from envhub.agents.executors import Group, RolloutPool
from envhub.agents.session import Agent
from envhub.errors import EngineFault, UserError
from envhub.ledger import Ledger
from envhub.records import RolloutStore, RunFolder
from envhub.rollout import Rollout
from envhub.trainer import alarms, best, checkpoint, metrics
from envhub.trainer.alarms import Canary
from envhub.trainer.collected import Collected, describe, has_spread, rollouts_of
from envhub.trainer.config import TrainConfig
from envhub.trainer.data import TaskSampler
from envhub.trainer.evaluation import AFTER, BEFORE, STEP, WARM, Evaluator
from envhub.trainer.learner import Learner
from envhub.trainer.origin import Origin
from envhub.trainer.plan import Plan, sampling_of, truncates
from envhub.trainer.plotting import plot, usual
from envhub.trainer.progress import Progress, StepShown
from envhub.trainer.report import final_report
from envhub.trainer.sft.warm import warm_start
from envhub.trainer.stopping import whole
from envhub.trainer.strategy import Strategy
from envhub.trainer.transfer import WeightTransfer

_SHOWN = 400
_CANARY = "Numbers from one to forty: " + ", ".join(map(str, range(1, 41)))


@dataclass(slots=True)
class Trainer:
    """One run. The engine samples with the weights of the last update; with `overlap`, while the update is made, with those
    before it.

    Every rollout is accounted for in `ledger`; `step` counts finished training steps. `finished` is what a checkpoint of
    the last finished step holds beside the weights, and `saved` the newest checkpoint.
    """

    config: TrainConfig
    plan: Plan
    agent: Agent
    strategy: Strategy
    transfer: WeightTransfer
    tokenizer: Any
    folder: RunFolder
    store: RolloutStore
    log: metrics.MetricsLog
    progress: Progress
    ledger: Ledger = field(default_factory=Ledger)
    step: int = 0
    version: int = 0
    empty: int = 0
    saved: checkpoint.Checkpoint | None = None
    finished: checkpoint.Meta | None = None
    learner: Learner = field(init=False)
    canary: Canary = field(init=False)
    sampler: TaskSampler = field(init=False)
    pool: RolloutPool = field(init=False)
    evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.pool = RolloutPool(
            self.agent.executor, self.plan.environment, config=config.env_config, limits=self.plan.limits,
            sampling=sampling_of(config), concurrency=config.concurrency,
            retries=config.retries, minimum_group=config.minimum_group, ledger=self.ledger, seed=config.seed,
        )  # fmt: skip
        self.learner = Learner(
            config, self.plan.algorithm, self.plan.shaping, self.strategy, self.folder.path, self.progress.warn
        )
        self.sampler = TaskSampler(self.pool.tasks, config.split, config.seed)
        self.evaluator = Evaluator(
            config, self.plan.held_out, self.agent.executor, self.store, self.log, self.progress, self.folder.path
        )
        prompt = self.tokenizer.encode(_CANARY, add_special_tokens=False)
        self.canary = Canary(self.agent.engine, self.strategy, prompt, config.temperature)

    async def run(self) -> None:
        """Train up to `config.steps`, evaluating before and after; leaves a checkpoint.

        When it is cancelled, the update or the save that goes on comes to its end, and the last finished step is saved.
        """
        self.progress.title(f"{self.plan.algorithm.name} on {self.plan.environment.id}")
        if self.saved is not None and self.config.lora_rank:  # the engine was started with the base
            await self.transfer.send(self.strategy, self.agent.engine, self.version)
        await self.canary.check(self.version)
        try:
            await self._run()
        except asyncio.CancelledError:
            await whole(self.save())
            raise

    async def _run(self) -> None:
        config = self.config
        if self.saved is None:
            await self.evaluator.run(BEFORE, self.step)
            await self._warm_start()
        elif self.step == 0:
            await self._compare(WARM)
        elif self.step < config.steps and self._is_due(config.eval_every):
            await self._compare(STEP)
        ahead: asyncio.Task[Collected] | None = None
        try:
            while self.step < config.steps:
                begun = time.monotonic()
                collected = await (ahead or self.collect())
                last = self.step + 1 == config.steps
                ahead = asyncio.create_task(self.collect()) if config.overlap and not last else None
                await whole(self._learn(collected, ahead, begun), hurry=ahead.cancel if ahead is not None else None)
                if self._is_due(config.save_every) and not last:
                    await whole(self.save())
                if self._is_due(config.eval_every) and not last:
                    await self._compare(STEP)
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait([ahead])
        self.learner.warn_of_none_made(config.steps)
        await whole(self.save())
        await self._compare(AFTER)
        names = [held.environment.id for held in self.plan.held_out]
        for line in final_report(
            metrics.read_metrics(self.folder.path), self.store, names, plain=self.progress.ascii_only
        ):
            self.progress.tell(line)
        self.progress.tell(f"checkpoint: {self._last()}")
        try:
            await asyncio.to_thread(self.draw)
        except UserError as problem:  # the run itself is whole
            self.progress.warn(f"warning: there is no curve: {problem}")

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    async def _learn(self, collected: Collected, ahead: asyncio.Task[Collected] | None, begun: float) -> None:
        """The rest of a step that `begun`: update on what was collected, give the engine the weights, write it all down.

        The engine gets them when it has sampled what is collected `ahead`, so that all of a step's rollouts are of the same
        weights.
        """
        updating, groups = time.monotonic(), collected.groups
        rollouts = rollouts_of(groups)
        values = describe(groups)
        self._count_empty(groups)
        self._refuse_stale(rollouts)
        kept = [group for group in groups if has_spread(group)] if self.config.filter_rounds else groups
        learnt = rollouts_of(kept)
        values["groups_filtered"] = float(len(groups) - len(kept))
        async with self.progress.during(lambda: f"step {self.step + 1} of {self.config.steps}: updating the weights"):
            values |= await asyncio.to_thread(self.learner.update, learnt, self.step)
        self.ledger.use(len(learnt))
        self.ledger.drop("no_spread", len(rollouts) - len(learnt), buffered=True)
        values["update_seconds"] = time.monotonic() - updating
        if ahead is not None:
            await asyncio.wait([ahead])
        values |= await self.sync()
        values["rollout_seconds"] = collected.seconds
        values["step_seconds"] = time.monotonic() - begun
        values["tokens_per_second"] = values["sampled_tokens"] / max(1e-9, collected.seconds)
        self.step += 1
        self.finished = self._meta(collected.end)
        self.record(groups, values)

    def _refuse_stale(self, rollouts: list[Rollout]) -> None:
        """Raises EngineFault for a token that was sampled with other weights than this step may learn from."""
        oldest = self.version - self.config.overlap
        for rollout in rollouts:
            versions = {version for segment in rollout.trajectory.segments for version in segment.versions}
            if outside := [version for version in versions if not oldest <= version <= self.version]:
                raise EngineFault(
                    f"engine {self.agent.engine.name!r} gave a token of weight version {min(outside)} to a step that learns "
                    f"from versions {oldest} to {self.version}"
                )

    async def _warm_start(self) -> None:
        """Let the policy begin with what the environment's oracle does, and save that as step 0.

        A KL is then to that beginning, unless a reference is named.
        """
        config, done = self.config, 0
        if not config.warm_start:
            return
        reports = warm_start(
            self.strategy, self.agent.renderer, self.plan.environment, env_config=config.env_config, split=config.split,
            seed=config.seed, steps=config.warm_start, size=config.tasks_per_step * config.group_size,
            longest=self.agent.engine.max_context, parser=config.parser,
            concurrency=config.concurrency,
        )  # fmt: skip
        async for report in reports:
            done += 1
            self.learner.count_skipped([report.skipped], done)
            self.progress.say(f"warm start, step {done}/{config.warm_start}: NLL {report.metrics['loss']:.4f}")
        if self.learner.algorithm.kl_coef and config.reference is None:
            self.strategy.refresh_reference()
        await self.sync()
        self.finished = self._meta(self.sampler.position)
        await whole(self.save())
        self.progress.say(f"checkpoint: {self._last()}")
        await self._compare(WARM)

    async def collect(self) -> Collected:
        """Sample the groups of one step; with `filter_rounds`, others for those of equal rewards."""
        begun = time.monotonic()
        groups = await self._sample(self.config.tasks_per_step)
        for _ in range(self.config.filter_rounds):
            lacking = self.config.tasks_per_step - sum(map(has_spread, groups))
            if not lacking:
                break
            groups += await self._sample(lacking)
        return Collected(groups, time.monotonic() - begun, self.sampler.position)

    async def _sample(self, count: int) -> list[Group]:
        config, groups = self.config, list[Group]()
        places = itertools.count(self.sampler.position)  # a group's name, and so its seeds, are the same after a resume
        tasks = self.sampler.take(count)
        total, done = count * config.group_size, 0

        def describe_now() -> str:
            waiting = self.pool.in_flight()
            longest = f", longest in {waiting[0].stage} for {waiting[0].seconds:.0f} s" if waiting else ""
            return f"step {self.step + 1} of {config.steps}: {done} of {total} rollouts{longest}"

        async with self.progress.during(describe_now, lambda: done / total):
            async for group in self.pool.run(tasks, config.group_size, name=lambda task: f"{task.id}#{next(places)}"):
                groups.append(group)
                done += config.group_size
        order = {id(task): place for place, task in enumerate(tasks)}
        return sorted(groups, key=lambda group: order[id(group.task)])  # sums of floats depend on it

    def _count_empty(self, groups: list[Group]) -> None:
        """Count steps in a row that have no sampled token to learn from, and say what the commonest reason is.

        Raises UserError for the third, and for a run of which every step is one.
        """
        scored = rollouts_of(groups)
        if any(rollout.action_tokens for rollout in scored):
            self.empty = 0
            return
        self.empty += 1
        found = scored or [rollout for group in groups for rollout in group.dropped]
        kinds = Counter(rollout.fault or rollout.outcome.value for rollout in found)
        kind, count = kinds.most_common(1)[0] if kinds else ("small_group", 0)
        what, why = ("sampled token", "outcome") if scored else ("rollout", "fault")
        example = next((f": {rollout.error}" for rollout in found if rollout.error), "")
        said = f"no {what} to train on; the commonest {why} is {kind!r} ({count} of {len(found)} rollouts){example[:_SHOWN]}"
        if self.empty >= min(alarms.IN_A_ROW, self.config.steps):
            raise UserError(f"{self.empty} steps in a row had {said}")
        self.progress.warn(f"step {self.step + 1}: warning: {said}")

    async def sync(self) -> dict[str, float]:
        """Give the engine the new weights and prove that it has them; returns the seconds of both."""
        self.version += 1
        doubted = self.canary.doubted
        async with self.progress.during(lambda: "giving the engine the new weights"):
            seconds = await self.transfer.send(self.strategy, self.agent.engine, self.version)
            begun = time.monotonic()
            await self.canary.check(self.version)
            canary = time.monotonic() - begun
        if self.canary.doubted > doubted:
            self.progress.warn(
                f"warning: after the transfer of version {self.version} the engine first gave wrong logprobs, then right ones "
                f"({self.canary.doubted} wrong answers in this run)"
            )
        return {"transfer_seconds": seconds, "canary_seconds": canary}

    def record(self, groups: list[Group], values: dict[str, float]) -> None:
        """Write a step's rollouts and metrics, and say a line."""
        for group in groups:
            for rollout in (*group.rollouts, *group.dropped):
                self.store.add(rollout, phase="train", step=self.step)
        self.ledger.check()
        if any(rollout.action_tokens for rollout in rollouts_of(groups)):
            self._say_where_nothing_is_learnt(groups, values)
        if alarm := alarms.mismatch(values, truncated=truncates(self.config)):
            self.progress.warn(f"step {self.step}: warning: {alarm}")
        faults = Counter(r.fault for group in groups for r in group.dropped if r.fault is not None)
        ledger = self.ledger.to_dict()
        self.log.write(
            self.step, "train", {**values, "epoch": self.sampler.epoch, "faults": dict(faults), "ledger": ledger}
        )
        example = next(iter(rollouts_of(groups)), None)
        self.progress.finished(StepShown(self.step, self.config.steps, values, ledger, example))
        dropped = f", {values['dropped']:.0f} dropped" if values["dropped"] else ""
        self.progress.say(
            f"step {self.step}/{self.config.steps}  reward {values['reward']:.3f}  passed {values['passed']:.2f}  "
            f"gradient {values.get('gradient_norm', math.nan):.2f}  tokens {values['sampled_tokens']:.0f}{dropped}  "
            f"rollouts {values['rollout_seconds']:.1f} s  update {values['update_seconds']:.1f} s  "
            f"weights {values['transfer_seconds']:.1f} s"
        )

    def _say_where_nothing_is_learnt(self, groups: list[Group], values: dict[str, float]) -> None:
        if self.plan.algorithm.needs_groups and not self._differ(groups):
            self.progress.warn(
                f"step {self.step}: warning: nothing was learnt, the rewards of no group differ; take easier tasks, a larger "
                "--group-size, or --warm-start"
            )
        elif values.get("gradient_norm") == 0:
            self.progress.warn(
                f"step {self.step}: warning: nothing was learnt, the gradient is 0: all rewards of the step are equal once they "
                "are shaped and normalised; take other tasks, or more of them in a step"
            )

    def _differ(self, groups: list[Group]) -> bool:
        """Whether the rewards of any group differ once they are shaped, as its advantages are made of them."""
        shaped = (self.plan.shaping(group.rollouts) for group in groups if group.rollouts)
        return any(bool((rewards != rewards[0]).any()) for rewards in shaped)

    async def _compare(self, when: str) -> None:
        """Evaluate the present step, unless that was done before the run was stopped, and keep the best checkpoint."""
        await self.evaluator.run_missing(when, self.step)
        await whole(self._keep_best())

    async def _keep_best(self) -> None:
        """Let the link `best` lead to the best checkpoint, saving the present step where it is that."""
        found, folder = self._evaluated(), self.folder.path / "checkpoints"
        present = {item.step: item for item in checkpoint.finished(folder)}
        chosen = best.choose(found, {*present, self.step})
        if chosen is None:
            return
        if chosen not in present:
            await self.save()
        checkpoint.point_to_best(checkpoint.Checkpoint(chosen, folder / folder_name(chosen)))
        checkpoint.rotate(folder, self.config.keep)

    def _evaluated(self) -> dict[int, float]:
        """The metric that the best checkpoint is chosen by, of every step that was evaluated; empty where none is."""
        return best.values(metrics.read_metrics(self.folder.path), self.plan.best) if self.plan.best else {}

    def _last(self) -> str:
        """The newest checkpoint, and the best."""
        folder, found = self.folder.path / "checkpoints", self._evaluated()
        chosen = best.choose(found, [item.step for item in checkpoint.finished(folder)])
        text = str(self.saved.path) if self.saved is not None else "none"
        if chosen is None:
            return text
        return f"{text}; best: {folder / BEST} ({self.plan.best} {found[chosen]:.3f} after step {chosen})"

    def _meta(self, position: int) -> checkpoint.Meta:
        return checkpoint.Meta(
            step=self.step, sampler=checkpoint.Place(position=position, seed=self.sampler.seed),
            ledger=self.ledger.to_dict(), version=self.version,
            kl_coef=self.learner.algorithm.kl_coef if self.config.kl_target is not None else None,
            skipped=self.learner.skipped, empty=self.empty, origin=Origin.of(self.config, self.plan),
        )  # fmt: skip

    async def save(self) -> None:
        """Write a checkpoint of the last finished step, where there is one that is not saved."""
        meta = self.finished
        if meta is None or (self.saved is not None and self.saved.step == meta.step):
            return
        folder, keep = self.folder.path / "checkpoints", self.config.keep
        self.saved = await asyncio.to_thread(checkpoint.save, folder, self.strategy, self.tokenizer, meta, keep)

    def resume(self, saved: checkpoint.Checkpoint) -> None:
        """Take up a checkpoint; later rollouts are forgotten, they will be made again. Raises UserError for a damaged one."""
        meta = saved.meta()
        saved.restore(self.strategy)
        self.sampler.load_state(meta.sampler.model_dump())
        self.ledger = self.pool.ledger = meta.counts()
        self.ledger.drop("stopped", self.ledger.buffered, buffered=True)  # what was collected ahead is sampled again
        self.step, self.version = saved.step, meta.version
        self.learner.skipped, self.empty = meta.skipped, meta.empty
        self.saved, self.finished = saved, meta
        kept = meta.kl_coef if self.config.kl_target is not None else None
        self.learner.algorithm = self.plan.algorithm.with_options(kl_coef=kept)
        self.agent.engine.weight_version = self.version  # it was started with that version's weights
        self.forget(self.step)

    def forget(self, after: int = -1) -> None:
        """Forget the recorded rollouts of steps after `after`: those of a run that was stopped before it was saved."""
        for phase in ("train", "eval"):
            self.store.drop_after(phase, after)

    def draw(self) -> None:
        """Write the curve as `curve.png`."""
        title = f"{self.plan.algorithm.name} on {self.plan.environment.id}, {self.config.model}"
        rows = metrics.read_metrics(self.folder.path)
        plot({self.folder.path.name: rows}, self.folder.path / "curve.png", shown=usual(rows), title=title)
