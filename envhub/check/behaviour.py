"""The checks of what an environment does: the same for the same seed, apart from the world, and fair."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from envhub.check.junk import is_right, junk_actions
from envhub.check.play import (
    Episode,
    Player,
    always,
    difference,
    null_policy,
    oracle_policy,
    play,
    random_policy,
    scripted,
)
from envhub.check.report import fail, skip, warn
from envhub.check.subject import TURNS_AT_MOST, Subject, of_fault, raise_if_hung, remedy_of
from envhub.errors import Fault, UserError
from envhub.messages import Action

_TURNS_OF_JUNK = 4
_NULL_SHARE = 0.1
_REWARD_REMEDY = "pay only for what solves the task; nothing for having answered at all"
_ORACLE_ADVICE = (
    "define oracle(self): it returns the right action in the present state and proves that the task can be solved"
)


async def determinism(subject: Subject) -> str:
    """The same task, seed and actions give the same episode: on one instance, and on a fresh one."""
    scripts = await subject.scripts()
    async with subject.opened() as driver:
        for first in scripts:
            policy, turns = scripted(first.actions), max(1, len(first.actions))
            for where in ("on a fresh instance", "on the same instance"):
                other = await play(driver, first.task, policy, turns)
                raise_if_hung(other)
                if found := difference(_repeatable(first), other):
                    raise fail(
                        f"the same seed and actions give another episode {where}: {found}",
                        "draw all randomness from self.rng, which reset has seeded; "
                        "keep no state from one episode to the next",
                    )
    subject.deterministic = True
    return "the same episodes twice and on a fresh instance"


def _repeatable(episode: Episode) -> Episode:
    """The episode without a fault of the policy, which a replay of its actions cannot have."""
    if episode.fault_call != "oracle":
        return episode
    return Episode(episode.task, episode.opening, episode.opening_info, episode.actions, episode.steps)


async def interleaving(subject: Subject) -> str:
    """Two instances that step alternately play the same episodes as apart."""
    apart = await subject.scripts()
    async with subject.opened() as left, subject.opened() as right:
        players = [
            Player(driver, episode.task, scripted(episode.actions), max(1, len(episode.actions)))
            for driver, episode in zip((left, right), apart, strict=True)
        ]
        going = [True, True]
        while any(going):
            going = [await player.advance() for player in players]
    for alone, player in zip(apart, players, strict=True):
        raise_if_hung(player.episode)
        if found := difference(_repeatable(alone), player.episode):
            raise fail(
                f"an instance plays another episode while a second one plays: {found}",
                "keep the state of an episode on self; none on the class, in a module or in the global generators",
            )
    return "two instances do not touch each other"


async def global_rng(subject: Subject) -> str:
    """The global generators are left alone, and do not decide anything."""
    if subject.cls.isolation == "process":
        raise skip("its code runs in a process of its own, whose global generators are nobody else's")
    script = (await subject.scripts())[0]
    played: list[Episode] = []
    for seed in (1, 2):
        with _seeded_globally(seed) as changed:
            async with subject.opened() as driver:
                policy = scripted(script.actions)
                played.append(await play(driver, script.task, policy, max(1, len(script.actions))))
            names = changed()
        raise_if_hung(played[-1])
        if names:
            raise fail(
                f"an episode changes the global state of {' and '.join(names)}",
                "draw from self.rng instead, and seed nothing global: every other environment shares it",
            )
    if subject.deterministic and (found := difference(played[0], played[1])):
        raise fail(f"the global generators decide what happens: {found}", "draw from self.rng, which reset has seeded")
    return "random and numpy.random are left alone"


@contextmanager
def _seeded_globally(seed: int) -> Iterator["_Changed"]:
    """Seed the global generators for a while; yields a function that names those whose state has changed since."""
    plain, legacy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield _Changed()
    finally:
        random.setstate(plain)
        np.random.set_state(legacy)


class _Changed:
    def __init__(self) -> None:
        self._before = self._states()

    @staticmethod
    def _states() -> dict[str, str]:
        legacy = np.random.get_state(legacy=False)
        return {"random": str(random.getstate()), "numpy.random": repr(_plain(legacy))}

    def __call__(self) -> list[str]:
        return [name for name, state in self._states().items() if state != self._before[name]]


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


async def limits(subject: Subject) -> str:
    """A model that never finishes can be cut by max_turns: until then every step can be taken."""
    allowed = subject.cls.limits.max_turns
    (episode,) = await subject.play_all(null_policy, 1)
    if episode.fault is not None:
        raise of_fault(episode)
    if episode.ended:
        return f"ends by itself after {len(episode.steps)} of {allowed} turns with an empty answer"
    if allowed > TURNS_AT_MOST:
        return f"the first {TURNS_AT_MOST} of {allowed} turns can be taken"
    return f"cut after {allowed} turns"


async def junk(subject: Subject) -> str:
    """No junk makes it raise or hang, and none is paid."""
    problems, paid = [], []
    remedy = "read the action as text from a stranger: answer the model what was wrong, or raise ModelFault"
    names = list(junk_actions((await _begin(subject))[0].opening))
    for name in names:
        opening, knows = await _begin(subject)
        action = junk_actions(opening.opening)[name]
        if is_right(action, knows):
            continue
        episode = await subject.play(opening.task, always(action), min(subject.max_turns, _TURNS_OF_JUNK))
        if episode.fault is not None:
            problems.append(f"{name}: {_short(episode.fault)}")
        elif episode.reward > 0:
            paid.append(f"{name} ({episode.reward:g})")
        if episode.fault is not None and episode.hung:
            remedy = remedy_of(episode.fault)
            break
    if problems:
        raise fail(f"{len(problems)} of {len(names)} junk answers fail: {_some(problems)}", remedy)
    if paid:
        verdict = fail if subject.has_oracle else warn
        raise verdict(f"{len(paid)} of {len(names)} junk answers are paid: {_some(paid)}", _REWARD_REMEDY)
    return f"{len(names)} kinds of junk neither raise nor pay"


async def _begin(subject: Subject) -> tuple[Episode, Action | None]:
    """The opening of an episode, and what the oracle would say to it."""
    episode = await subject.play(subject.tasks[0], scripted(()))
    if episode.fault is not None or not subject.has_oracle:
        return episode, None
    try:
        return episode, await (await subject.shared()).oracle()
    except (Fault, UserError, TypeError):  # the oracle has a check of its own
        await subject.release()
        return episode, None


def _short(problem: BaseException) -> str:
    text = str(problem)
    return text if len(text) <= 300 else f"{text[:150]} … {text[-140:]}"


def _some(items: list[str]) -> str:
    return "; ".join(items[:3]) + (f"; and {len(items) - 3} more" if len(items) > 3 else "")


async def oracle(subject: Subject) -> str:
    """The oracle solves the task within the limits, for more than silence is paid."""
    if not subject.has_oracle:
        raise skip("no oracle: nothing proves that the task can be solved", _ORACLE_ADVICE)
    episodes = await subject.play_all(oracle_policy, subject.episodes)
    if all(not episode.steps and episode.fault is None for episode in episodes):
        raise skip("the oracle returns None for every task", _ORACLE_ADVICE)
    for episode in episodes:
        turns = len(episode.steps)
        if episode.fault is not None:
            raise of_fault(episode)
        if not episode.ended and turns < subject.max_turns:
            raise fail(
                f"the oracle knows no action at turn {turns + 1} of task {episode.task.id!r}",
                "let it return an action in every state that it can lead to",
            )
        if not episode.ended and subject.cls.limits.max_turns <= TURNS_AT_MOST:
            raise fail(
                f"the oracle does not end the episode of task {episode.task.id!r} within max_turns={turns}",
                "return terminated=True when the task is done, repair the oracle, or raise limits.max_turns",
            )
    mean = _mean(episodes)
    null = await subject.play_all(null_policy, subject.episodes)
    if not any(episode.fault for episode in null):
        silent = _mean(null)
        if mean <= silent:
            raise fail(
                f"the oracle's mean reward {mean:g} is not above that of empty answers, {silent:g}",
                "repair the oracle, or the reward that does not pay for the right answer",
            )
    for episode in episodes:
        if episode.steps and episode.steps[-1].info.get("solved") is False:
            raise fail(
                f"the oracle does not solve task {episode.task.id!r}: its reward is {episode.reward:g}, and the environment says "
                "solved=False",
                "repair the task's solution, or its tests",
            )
    subject.oracle_reward = mean
    return f"mean reward {mean:g} in {len(episodes)} episodes of at most {max(len(e.steps) for e in episodes)} turns"


async def policies(subject: Subject) -> str:
    """Silence and random words neither fail nor come near the oracle's reward."""
    means: dict[str, float] = {}
    for name, policy in (("empty answers", null_policy), ("random words", random_policy)):
        episodes = await subject.play_all(policy, subject.episodes)
        for episode in episodes:
            if episode.fault is not None:
                verdict = of_fault(episode)
                raise fail(f"{name}: {verdict.detail}", verdict.remedy)
        means[name] = _mean(episodes)
    found = ", ".join(f"{name} {mean:g}" for name, mean in means.items())
    right, null, words = subject.oracle_reward, means["empty answers"], means["random words"]
    if right is None:
        return f"mean rewards: {found}"
    if null > max(0.0, _NULL_SHARE * right):
        raise fail(f"empty answers earn {null:g} on average, the oracle {right:g}", _REWARD_REMEDY)
    if words >= right:
        raise fail(f"random words earn {words:g} on average, the oracle {right:g}", _REWARD_REMEDY)
    return f"mean rewards: {found}, oracle {right:g}"


def _mean(episodes: list[Episode]) -> float:
    return sum(episode.reward for episode in episodes) / len(episodes)


__all__ = [
    "determinism",
    "global_rng",
    "interleaving",
    "junk",
    "limits",
    "oracle",
    "policies",
]
