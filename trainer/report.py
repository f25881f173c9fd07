"""What a run says at its end: its curve, what was evaluated before and after, and answers from before and after."""

from collections.abc import Iterator, Sequence

from envhub.agents.evaluation import Interval, passes
from envhub.records import RolloutStore
from envhub.rollout import Rollout
from envhub.trainer.evaluation import AFTER, BEFORE, MOMENTS
from envhub.trainer.metrics import Row
from envhub.trainer.text import chart, clipped, conversation, middled

_TASKS = 2
_CLIPPED = 240


def final_report(
    rows: Sequence[Row], store: RolloutStore, environments: Sequence[str], *, plain: bool = False
) -> list[str]:
    """The lines, from a run's metrics and its rollouts; those of what it has not, such as evaluations, are left out."""
    lines = curve(rows, plain=plain)
    for name in environments:
        lines += compared(rows, name)
        lines += samples(store, name, max((row["step"] for row in _held_out(rows, name)), default=0))
    return lines


def curve(rows: Sequence[Row], *, plain: bool = False) -> list[str]:
    """The mean reward of the training rollouts of each step, drawn, or said where it never changes. `plain` draws with ASCII."""
    train = [row for row in rows if row["kind"] == "train"]
    rewards = {row["reward"] for row in train} - {None}
    if not rewards:
        return []
    what = f"mean reward of the training rollouts, steps {train[0]['step']} to {train[-1]['step']}"
    if len(rewards) == 1:
        return [f"{what}: {rewards.pop():.3f} throughout"]
    return [f"{what}:", *chart([row["reward"] for row in train], plain=plain)]


def compared(rows: Sequence[Row], environment: str) -> list[str]:
    """The mean reward on held-out tasks at each moment, with its interval, and whether those before and after overlap."""
    evaluated = (row for row in _held_out(rows, environment) if row.get("scored") and row["reward"] is not None)
    at = {row.get("when"): row for row in evaluated}
    found = {when: _interval(at[when]) for when in MOMENTS if when in at}
    if not found:
        return []
    said = [f"{MOMENTS[when]} {interval}" for when, interval in found.items()]
    verdict = _verdict(found[BEFORE], found[AFTER]) if BEFORE in found and AFTER in found else ""
    return [f"held-out tasks of {environment}, mean reward: {', '.join(said)}{verdict}"]


def _interval(row: Row) -> Interval:
    return Interval(row["reward"], row.get("reward_low"), row.get("reward_high"))


def _verdict(before: Interval, after: Interval) -> str:
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return ""
    if after.low > before.high:
        return "; the intervals do not overlap: it is better"
    if after.high < before.low:
        return "; the intervals do not overlap: it is worse"
    return "; the intervals overlap: no clear change (more --eval-tasks and --eval-samples narrow them)"


def samples(store: RolloutStore, environment: str, last: int) -> list[str]:
    """The answers before training and after step `last` to the first held-out tasks, by name, that were scored both times.

    They are the first, and not those that were learnt best.
    """
    before = _first_answers(store, environment, 0)
    after = _first_answers(store, environment, last) if last else {}
    lines = []
    for task in sorted(before.keys() & after.keys())[:_TASKS]:
        asked = next((text for role, text in conversation(before[task]) if role == "user"), "")
        lines += [
            f"held-out task {middled(task, 80)}: {clipped(asked, _CLIPPED)}",
            *(f"  {when}: {_answer(rollout)}" for when, rollout in (("before", before[task]), ("after", after[task]))),
        ]
    return lines


def _first_answers(store: RolloutStore, environment: str, step: int) -> dict[str, Rollout]:
    """By task its scored rollout of the lowest number; of several evaluations after one step, of the first."""
    found: dict[str, Rollout] = {}
    for rollout in store.iterate(phase="eval", step=step):
        if rollout.environment == environment and rollout.outcome.is_scored:
            first = found.setdefault(rollout.task.id, rollout)
            if rollout.member < first.member:
                found[rollout.task.id] = rollout
    return found


def _answer(rollout: Rollout) -> str:
    said = [text for role, text in conversation(rollout) if role == "assistant"]
    how = "passed" if passes(rollout) else "not passed"
    return f"reward {rollout.reward:.3f}, {how}: {clipped(said[-1] if said else '', _CLIPPED)}"


def _held_out(rows: Sequence[Row], environment: str) -> Iterator[Row]:
    return (row for row in rows if row["kind"] == "eval" and row.get("env") == environment)
