"""Replay: run a recorded episode's environment again with the recorded actions, and compare what it says."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from envhub import registry
from envhub.driver import Driver
from envhub.errors import Fault, NotRegisteredError
from envhub.messages import Action, Observation
from envhub.rollout import Rollout, Turn
from envhub.specs import EnvironmentSpec
from envhub.trajectory import SAMPLED

OPENING = -1
_SHOWN = 160
_BEFORE = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that came out differently.

    `turn` counts from 0; -1 is the opening. `what` is `"observation"`, `"reward"`, `"terminated"`, `"truncated"`, or
    `"fault"` where the environment raises now. `recorded` and `replayed` are texts, shortened around where they part.
    """

    turn: int
    what: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        place = "opening" if self.turn == OPENING else f"turn {self.turn}"
        return f"{place}, {self.what}: recorded {self.recorded}, replayed {self.replayed}"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found.

    `turns` is how many turns were played again, the one that differs among them. `source_changed` says that the
    environment's source is no longer the recorded one, where the record knows its hash.
    """

    rollout: str
    environment: str
    turns: int
    first_difference: Difference | None
    source_changed: bool

    @property
    def reproduced(self) -> bool:
        """Whether everything that was replayed came out as recorded."""
        return self.first_difference is None


async def replay(rollout: Rollout, spec: EnvironmentSpec | None = None) -> ReplayReport:
    """Play a rollout's recorded actions in a fresh environment, with the recorded task, seed and configuration.

    `spec` defaults to what the registry knows under the recorded id, else to where the class was loaded from. Compared are the opening observation, and each
    turn's observation, reward (exactly), `terminated` and `truncated`; `info` is not. The replay ends at the first
    difference, and before the first turn that the environment did not answer in the record. An environment that raises
    now is a difference. Raises UserError where the environment cannot be found, loaded or configured.
    """
    found = spec if spec is not None else _recorded_spec(rollout)
    changed = rollout.content_hash is not None and registry.content_hash(found.target) != rollout.content_hash
    driver = Driver(found, rollout.config, step_seconds=rollout.limits.step_seconds)
    try:
        turns, difference = await _compare(driver, rollout)
    finally:
        await driver.close()
    return ReplayReport(rollout.id, rollout.environment, turns, difference, changed)


def _recorded_spec(rollout: Rollout) -> EnvironmentSpec:
    try:
        return registry.spec(rollout.environment)
    except NotRegisteredError:
        if not rollout.target:
            raise
        return EnvironmentSpec(rollout.environment, rollout.target)


async def _compare(driver: Driver, rollout: Rollout) -> tuple[int, Difference | None]:
    if rollout.opening is None:
        return 0, None
    turn = OPENING
    try:
        opening, _ = await driver.reset(rollout.task)
        if difference := _observations(turn, rollout.opening, opening):
            return 0, difference
        for turn, recorded, action in _answered_turns(rollout):
            result = await driver.step(action)
            assert recorded.observation is not None
            if difference := _observations(turn, recorded.observation, result.observation):
                return turn + 1, difference
            for what in ("reward", "terminated", "truncated"):
                before, now = getattr(recorded, what), getattr(result, what)
                if before != now:
                    return turn + 1, Difference(turn, what, repr(before), repr(now))
    except Fault as problem:
        return turn + 1, Difference(turn, "fault", "no fault", _cut(f"{type(problem).__name__}: {problem}"))
    return turn + 1, None


def _answered_turns(rollout: Rollout) -> Iterator[tuple[int, Turn, Action]]:
    """The turns up to the first that has no observation, with their actions as the environment had got them."""
    sampled = {item.turn: item.token_ids for item in rollout.trajectory.segments if item.origin == SAMPLED}
    for number, turn in enumerate(rollout.turns):
        if turn.observation is None:
            return
        action = turn.action
        if not action.token_ids:  # records keep the token ids in the trajectory alone
            action = replace(action, token_ids=sampled.get(number, ()))
        yield number, turn, action


def _observations(turn: int, recorded: Observation, replayed: Observation) -> Difference | None:
    before, now = _plain(recorded), _plain(replayed)
    if before == now:
        return None
    if recorded.text != replayed.text:
        before, now = recorded.text, replayed.text
    start = max(0, _parting(before, now) - _BEFORE)
    return Difference(turn, "observation", _cut(before, start), _cut(now, start))


def _plain(observation: Observation) -> str:
    """A text that is the same for observations whose JSON forms are."""
    value: Any = json.loads(json.dumps(observation.to_dict(), default=str))
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _parting(first: str, second: str) -> int:
    for position, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return position
    return min(len(first), len(second))


def _cut(text: str, start: int = 0) -> str:
    shown = text[start : start + _SHOWN]
    return f"{'…' if start else ''}{shown}{'…' if len(text) > start + _SHOWN else ''}"
