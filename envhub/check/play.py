"""Episodes as data: played by a policy, with faults recorded instead of raised, and compared step by step."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from envhub.driver import Driver, StepResult
from envhub.errors import DeadlineError, Fault, ModelFault, UserError
from envhub.messages import Action, Observation
from envhub.tasks import Task

_WORDS = ("yes", "no", "left", "right", "up", "blue", "seven", "open", "the", "answer", "is", "maybe", "x", "move", "a")


@dataclass(frozen=True, slots=True)
class Episode:
    """What happened in one episode. `fault` is what ended it other than its own rules, `fault_call` the call it came from.

    A ModelFault in `step` is an end within the rules: `model_fault` holds its text.
    """

    task: Task
    opening: Observation = field(default_factory=Observation)
    opening_info: dict[str, object] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    steps: tuple[StepResult, ...] = ()
    fault: Fault | UserError | None = None
    fault_call: str = ""
    model_fault: str = ""

    @property
    def reward(self) -> float:
        """The sum of the rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def ended(self) -> bool:
        """Whether the environment ended it: terminated, truncated, or by a ModelFault."""
        return bool(self.model_fault) or bool(self.steps and (self.steps[-1].terminated or self.steps[-1].truncated))

    @property
    def hung(self) -> bool:
        """Whether a call missed its deadline."""
        return isinstance(self.fault, DeadlineError)

    def failure(self) -> str:
        """The fault with the turn that it came in, in words."""
        return f"turn {len(self.steps) + 1} of task {self.task.id!r}: {self.fault}"


Policy: TypeAlias = Callable[[Driver, int, Episode], Awaitable[Action | None]]


async def play(driver: Driver, task: Task, policy: Policy, max_turns: int) -> Episode:
    """Play one episode of at most `max_turns` turns. The policy's None ends it early. Faults are recorded, not raised."""
    player = Player(driver, task, policy, max_turns)
    while await player.advance():
        pass
    return player.episode


class Player:
    """One episode that is played a call at a time, so that two can be played alternately."""

    def __init__(self, driver: Driver, task: Task, policy: Policy, max_turns: int) -> None:
        self._driver, self._task, self._policy, self._max_turns = driver, task, policy, max_turns
        self._begun = self._over = False
        self._opening = Observation()
        self._info: dict[str, object] = {}
        self._actions: list[Action] = []
        self._steps: list[StepResult] = []
        self._fault: Fault | UserError | None = None
        self._fault_call = self._model_fault = ""

    @property
    def episode(self) -> Episode:
        """The episode so far."""
        return Episode(
            self._task,
            self._opening,
            self._info,
            tuple(self._actions),
            tuple(self._steps),
            self._fault,
            self._fault_call,
            self._model_fault,
        )

    async def advance(self) -> bool:
        """Reset, or take one turn; False when the episode is over."""
        if self._over:
            return False
        call = "reset"
        try:
            if not self._begun:
                self._begun = True
                self._opening, self._info = await self._driver.reset(self._task)
                return True
            call = "oracle"
            action = await self._policy(self._driver, len(self._steps), self.episode)
            if action is None:
                self._over = True
                return False
            call = "step"
            self._actions.append(action)
            result = await self._driver.step(action)
        except (Fault, UserError) as problem:
            self._over = True
            if call == "step" and isinstance(problem, ModelFault):
                self._model_fault = str(problem) or "ModelFault"
            else:
                self._fault, self._fault_call = problem, call
            return False
        self._steps.append(result)
        self._over = result.terminated or result.truncated or len(self._steps) >= self._max_turns
        return not self._over


async def null_policy(driver: Driver, turn: int, so_far: Episode) -> Action | None:
    """Says nothing, ever."""
    return Action("")


async def random_policy(driver: Driver, turn: int, so_far: Episode) -> Action | None:
    """Words and small numbers from a generator seeded by the task and the turn."""
    rng = random.Random(f"{so_far.task.seed}/{turn}")
    if rng.random() < 0.25:
        return Action(str(rng.randint(0, 50)))
    return Action(" ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 6))))


async def oracle_policy(driver: Driver, turn: int, so_far: Episode) -> Action | None:
    """The environment's own right action."""
    return await driver.oracle()


def always(action: Action) -> Policy:
    """The same action every turn."""

    async def policy(driver: Driver, turn: int, so_far: Episode) -> Action | None:
        return action

    return policy


def scripted(actions: Sequence[Action]) -> Policy:
    """These actions in order, then the end."""

    async def policy(driver: Driver, turn: int, so_far: Episode) -> Action | None:
        return actions[turn] if turn < len(actions) else None

    return policy


def difference(first: Episode, second: Episode) -> str:
    """Where two episodes of the same task and actions part, in words; empty when they are the same."""
    if first.opening != second.opening:
        return f"reset observed {_shown(first.opening)}, then {_shown(second.opening)}"
    for turn, (a, b) in enumerate(zip(first.steps, second.steps, strict=False), start=1):
        if a.observation != b.observation:
            return f"turn {turn} observed {_shown(a.observation)}, then {_shown(b.observation)}"
        if a.reward != b.reward:
            return f"turn {turn} paid {a.reward:g}, then {b.reward:g}"
        for flag in ("terminated", "truncated"):
            if getattr(a, flag) != getattr(b, flag):
                return f"turn {turn} gave {flag}={getattr(a, flag)}, then {getattr(b, flag)}"
    if type(first.fault) is not type(second.fault) or bool(first.model_fault) != bool(second.model_fault):
        return f"one episode ended with {_end(first)}, the other with {_end(second)}"
    if len(first.steps) != len(second.steps):
        return f"one episode had {len(first.steps)} turns, the other {len(second.steps)}"
    return ""


def _end(episode: Episode) -> str:
    return str(episode.fault) if episode.fault is not None else episode.model_fault or "no fault"


def _shown(observation: Observation) -> str:
    text = observation.text
    if any(message.images for message in observation.messages):
        text += f" and {sum(len(message.images) for message in observation.messages)} images"
    return repr(text) if len(text) <= 120 else f"{text[:100]!r}… ({len(text)} characters)"
