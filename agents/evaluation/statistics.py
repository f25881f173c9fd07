"""What an evaluation reports, computed from rollouts."""

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from envhub.rollout import Rollout

Z95 = 1.959964
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % confidence interval; `low` and `high` are None where one cluster alone gives none."""

    mean: float
    low: float | None = None
    high: float | None = None

    def within(self, least: float, most: float) -> "Interval":
        """The same, not beyond what the mean can be."""
        if self.low is None or self.high is None:
            return self
        return Interval(self.mean, max(least, self.low), min(most, self.high))

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class FirstError:
    """The error of a kind that came first by task and sample, its text in one line."""

    task: str
    member: int
    text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """An evaluation in numbers.

    `rollouts` are all that ended; `scored` those whose reward is the model's; rates and means are over these alone.
    `faults` counts the rest by kind. `pass_at` maps k to pass@k, averaged over the tasks with at least k samples
    (`pass_at_tasks` says how many those are). A rollout passes when its environment says `solved`, or else when its
    reward is at least `pass_reward`. `first_errors` has a text for each kind of fault, the model's own included. What
    nothing is known of is NaN here, and None in the JSON form.
    """

    tasks: int
    rollouts: int
    scored: int
    reward: Interval
    passed: Interval
    pass_at: dict[int, float] = field(default_factory=dict)
    pass_at_tasks: dict[int, int] = field(default_factory=dict)
    components: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    first_errors: dict[str, FirstError] = field(default_factory=dict)
    turns: float = 0.0
    action_tokens: float = 0.0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {name: _strict(value) for name, value in asdict(self).items()}


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def passes(rollout: Rollout, pass_reward: float = 1.0) -> bool:
    """Whether a scored rollout counts as a success; see `Summary`."""
    solved = rollout.turns[-1].info.get("solved") if rollout.turns else None
    return solved if isinstance(solved, bool) else rollout.reward >= pass_reward - 1e-9


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The unbiased estimate of the chance that at least one of k samples is correct, from n samples of which c are.

    1 - C(n-c, k) / C(n, k); Chen et al. 2021 (arXiv 2107.03374). Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= samples and 0 <= correct <= samples):
        raise ValueError(f"pass@{k} of {samples} samples with {correct} correct")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


@functools.cache
def t95(degrees: int) -> float:
    """The 97.5 % quantile of Student's t with so many degrees of freedom."""
    import mpmath

    if degrees > 1000:
        return Z95
    tail = lambda t: mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t**2), regularized=True) - 0.05  # noqa: E731
    return float(mpmath.findroot(tail, (1.9, 13.0), solver="anderson"))


def clustered_interval(values: Sequence[float], clusters: Sequence[str]) -> Interval:
    """The mean of all values with a 95 % interval that treats the values of one cluster (a task) as dependent.

    Cluster-robust standard error: sqrt(G/(G-1) · Σ_g (Σ_{i in g} (x_i - mean))²) / N, with G clusters and N values; times the
    quantile of Student's t with G-1 degrees of freedom, which matters where there are few tasks.
    """
    if not values:
        return Interval(math.nan)
    mean = math.fsum(values) / len(values)
    sums: dict[str, float] = defaultdict(float)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value - mean
    count = len(sums)
    if count < 2:
        return Interval(mean)
    error = math.sqrt(count / (count - 1) * math.fsum(total**2 for total in sums.values())) / len(values)
    reach = t95(count - 1) * error
    return Interval(mean, mean - reach, mean + reach)


def summarise(rollouts: Iterable[Rollout], *, ks: Sequence[int] = (), pass_reward: float = 1.0) -> Summary:
    """The summary of an evaluation's rollouts, the last attempt of each (task, member)."""
    all_of = _last_attempts(rollouts)
    scored = [rollout for rollout in all_of if rollout.outcome.is_scored]
    tasks = [rollout.task.id for rollout in scored]
    good = [passes(rollout, pass_reward) for rollout in scored]
    by_task: dict[str, list[bool]] = defaultdict(list)
    for task, value in zip(tasks, good, strict=True):
        by_task[task].append(value)
    widest = max(map(len, by_task.values()), default=0)
    pass_at, counts = {}, {}
    for k in ks or _powers(widest):
        eligible = [values for values in by_task.values() if len(values) >= k]
        if eligible:
            pass_at[k] = sum(pass_at_k(len(v), sum(v), k) for v in eligible) / len(eligible)
            counts[k] = len(eligible)
    return Summary(
        tasks=len({rollout.task.id for rollout in all_of}),
        rollouts=len(all_of),
        scored=len(scored),
        reward=clustered_interval([rollout.reward for rollout in scored], tasks),
        passed=clustered_interval([float(value) for value in good], tasks).within(0.0, 1.0),
        pass_at=pass_at,
        pass_at_tasks=counts,
        components=_component_means(scored),
        outcomes=dict(Counter(rollout.outcome.value for rollout in all_of)),
        faults=dict(Counter(_kind(rollout) for rollout in all_of if not rollout.outcome.is_scored)),
        first_errors=_first_errors(all_of),
        turns=_mean([len(rollout.turns) for rollout in scored]),
        action_tokens=_mean([rollout.action_tokens for rollout in scored]),
        seconds=_mean([rollout.seconds for rollout in scored]),
    )


def _kind(rollout: Rollout) -> str:
    return rollout.fault or rollout.outcome.value


def _first_errors(rollouts: Iterable[Rollout]) -> dict[str, FirstError]:
    found: dict[str, FirstError] = {}
    for rollout in sorted(rollouts, key=lambda rollout: (rollout.task.index, rollout.member)):
        if rollout.error and _kind(rollout) not in found and (rollout.fault or not rollout.outcome.is_scored):
            text = "".join(char for char in " ".join(rollout.error.split()) if char.isprintable())
            shortened = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
            found[_kind(rollout)] = FirstError(rollout.task.id, rollout.member, shortened)
    return found


def _last_attempts(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """The last rollout of each (task, member): a fault that was run again is not counted twice."""
    return list({(rollout.task.id, rollout.member): rollout for rollout in rollouts}.values())


def _powers(most: int) -> list[int]:
    """1, 2, 4, … up to `most`, and `most` itself."""
    out, k = [], 1
    while k < most:
        out.append(k)
        k *= 2
    return [*out, most] if most else []


def _component_means(rollouts: Sequence[Rollout]) -> dict[str, float]:
    names = sorted({name for rollout in rollouts for name in rollout.components})
    return {name: _mean([r.components[name] for r in rollouts if name in r.components]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations on the tasks they share: `difference` is second minus first, by task, with its interval."""

    tasks: int
    first: float
    second: float
    difference: Interval

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval of the difference excludes 0."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)


def compare(first: Iterable[Rollout], second: Iterable[Rollout]) -> Comparison:
    """Compare mean rewards on the tasks that both evaluations scored; tasks are paired, so their difficulty cancels."""
    means = [_task_means(first), _task_means(second)]
    shared = sorted(means[0].keys() & means[1].keys())
    differences = [means[1][task] - means[0][task] for task in shared]
    return Comparison(
        len(shared),
        _mean([means[0][task] for task in shared]),
        _mean([means[1][task] for task in shared]),
        clustered_interval(differences, shared),
    )


def _task_means(rollouts: Iterable[Rollout]) -> dict[str, float]:
    by_task: dict[str, list[float]] = defaultdict(list)
    for rollout in _last_attempts(rollouts):
        if rollout.outcome.is_scored:
            by_task[rollout.task.id].append(rollout.reward)
    return {task: _mean(values) for task, values in by_task.items()}
