import itertools
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhub import Action, Limits, Outcome, Rollout, Task, Turn
from envhub.agents.evaluation import FirstError, Interval, clustered_interval, compare, pass_at_k, passes, summarise
from envhub.agents.evaluation.statistics import t95


def rollout(task: str, member: int = 0, reward: float = 1.0, outcome: Outcome = Outcome.FINISHED, **values) -> Rollout:
    turns = values.pop("turns", [Turn(Action("x"), sampled_tokens=4)])
    return Rollout("probe", Task(id=task), Limits(), outcome, reward, member=member, turns=turns, **values)


def fault(
    task: str, member: int = 0, kind: str = "environment", outcome: Outcome = Outcome.ENVIRONMENT_FAULT, **values
) -> Rollout:
    return rollout(task, member, 0.0, outcome, fault=kind, **values)


@pytest.mark.parametrize("samples", range(1, 7))
def test_pass_at_k_is_what_counting_every_choice_gives(samples: int) -> None:
    for correct in range(samples + 1):
        results = [True] * correct + [False] * (samples - correct)
        for k in range(1, samples + 1):
            choices = [any(choice) for choice in itertools.combinations(results, k)]
            assert pass_at_k(samples, correct, k) == pytest.approx(sum(choices) / len(choices), abs=1e-12)


@given(st.integers(1, 2000), st.data())
def test_pass_at_k_is_a_chance_that_grows_with_k(samples: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    value = pass_at_k(samples, correct, k)
    assert 0.0 <= value <= 1.0
    assert value <= pass_at_k(samples, correct, min(samples, k + 1)) + 1e-12
    assert pass_at_k(samples, correct, 1) == pytest.approx(correct / samples)


@pytest.mark.parametrize(("samples", "correct", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_what_is_no_sample(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {samples} samples"):
        pass_at_k(samples, correct, k)


def test_a_clustered_interval_has_the_value_worked_out_by_hand() -> None:
    # Mean 0.5; the clusters' sums of deviations are 1, 0 and -1: the error is sqrt(3/2 * 2) / 6.
    found = clustered_interval([1, 1, 1, 0, 0, 0], ["a", "a", "b", "b", "c", "c"])
    half = 4.302653 * math.sqrt(3.0) / 6  # Student's t with 2 degrees of freedom
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half))


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30))
def test_clusters_of_one_give_the_plain_standard_error(values: list[float]) -> None:
    found = clustered_interval(values, [str(index) for index in range(len(values))])
    error = statistics.stdev(values) / math.sqrt(len(values))  # its n - 1 is the G / (G - 1)
    assert found.low is not None and found.high is not None
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.high - found.low == pytest.approx(2 * t95(len(values) - 1) * error, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706205), (2, 4.302653), (9, 2.262157), (63, 1.998341), (500, 1.964720), (5000, 1.959964)],
)
def test_few_tasks_make_an_interval_wider_as_students_t_says(degrees: int, quantile: float) -> None:
    assert t95(degrees) == pytest.approx(quantile, abs=1e-5)


def test_an_interval_of_a_share_stays_within_0_and_1() -> None:
    passed = summarise([rollout("a"), rollout("b", reward=0.0)]).passed
    assert (passed.mean, passed.low, passed.high) == (0.5, 0.0, 1.0)


def test_repeating_every_value_in_its_cluster_adds_no_certainty() -> None:
    values, clusters = [0.0, 1.0, 1.0, 0.5], ["a", "b", "c", "d"]
    once, thrice = clustered_interval(values, clusters), clustered_interval(values * 3, clusters * 3)
    assert (once.low, once.high) == pytest.approx((thrice.low, thrice.high))
    alone = clustered_interval(values * 3, [str(i) for i in range(12)])
    assert alone.high < thrice.high


def test_one_cluster_gives_a_mean_alone_and_none_gives_nothing() -> None:
    assert clustered_interval([0.0, 1.0], ["a", "a"]) == Interval(0.5)
    assert math.isnan(clustered_interval([], []).mean)
    with pytest.raises(ValueError):
        clustered_interval([1.0], [])


def test_an_interval_is_shown_with_its_bounds() -> None:
    assert str(Interval(0.5)) == "0.500"
    assert str(Interval(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"


@pytest.mark.parametrize(
    ("reward", "info", "limit", "passed"),
    [
        (1.0, {}, 1.0, True),
        (0.1 + 0.2 + 0.7, {}, 1.0, True),
        (0.99, {}, 1.0, False),
        (0.5, {}, 0.5, True),
        (0.0, {"solved": True}, 1.0, True),
        (2.0, {"solved": False}, 1.0, False),
        (1.0, {"solved": None}, 1.0, True),
    ],
)
def test_an_environment_says_what_passes_or_the_reward_does(
    reward: float, info: dict, limit: float, passed: bool
) -> None:
    assert passes(rollout("t", reward=reward, turns=[Turn(Action("x"), info=info)]), limit) is passed


def test_faults_are_in_no_denominator() -> None:
    found = summarise([
        rollout("a", 0, 1.0), rollout("a", 1, 0.0), rollout("b", 0, 1.0, Outcome.TRUNCATED_TURNS),
        rollout("b", 1, 0.0, Outcome.MODEL_FAULT), fault("a", 2), fault("c", 0, "reward:length"),
        fault("c", 1, "engine", Outcome.ENGINE_FAULT), rollout("d", 0, 0.0, Outcome.CANCELLED),
    ])  # fmt: skip
    assert (found.tasks, found.rollouts, found.scored) == (4, 8, 4)
    assert found.reward.mean == found.passed.mean == 0.5
    assert found.faults == {"environment": 1, "reward:length": 1, "engine": 1, "cancelled": 1}
    assert found.outcomes == {
        "finished": 2, "truncated_turns": 1, "model_fault": 1, "environment_fault": 2, "engine_fault": 1, "cancelled": 1,
    }  # fmt: skip
    assert found.pass_at == {1: 0.5, 2: 1.0}
    assert found.pass_at_tasks == {1: 2, 2: 2}
    assert json.loads(json.dumps(found.to_dict()))["scored"] == 4


def test_the_last_attempt_of_each_sample_counts() -> None:
    found = summarise([fault("a"), rollout("a", reward=0.0), rollout("b", reward=0.0), rollout("b", reward=1.0)])
    assert (found.rollouts, found.scored, found.reward.mean, found.faults) == (2, 2, 0.5, {})
    assert summarise([rollout("a"), fault("a")]).scored == 0


def test_pass_at_k_is_over_the_tasks_with_enough_samples() -> None:
    found = [rollout("a", member, float(member == 0)) for member in range(4)] + [rollout("b", 0, 1.0)]
    summary = summarise(found, ks=(1, 2, 4, 8))
    assert summary.pass_at == pytest.approx({1: (0.25 + 1.0) / 2, 2: 0.5, 4: 1.0})
    assert summary.pass_at_tasks == {1: 2, 2: 1, 4: 1}
    assert list(summarise(found).pass_at) == [1, 2, 4]
    assert list(summarise(found[:3]).pass_at) == [1, 2, 3]
    assert list(summarise(found, pass_reward=2.0).pass_at.values()) == [0.0, 0.0, 0.0]


def test_means_are_over_scored_rollouts() -> None:
    found = summarise([
        rollout("a", components={"exact": 1.0, "short": 0.5}, seconds=2.0),
        rollout("b", components={"exact": 0.0}, seconds=4.0, turns=[Turn(Action("x"), sampled_tokens=1)] * 3),
        rollout("c", 0, 0.0, Outcome.ENGINE_FAULT, components={"exact": 9.0}, seconds=99.0),
    ])  # fmt: skip
    assert found.components == {"exact": 0.5, "short": 0.5}
    assert (found.turns, found.action_tokens, found.seconds) == (2.0, 3.5, 3.0)


def test_nothing_scored_is_said_and_is_no_zero() -> None:
    for given_rollouts in ([], [fault("a")]):
        found = summarise(given_rollouts)
        assert (found.scored, found.pass_at, found.rollouts) == (0, {}, len(given_rollouts))
        assert math.isnan(found.reward.mean)
        assert math.isnan(found.passed.mean)
        assert math.isnan(found.turns)


def test_what_is_not_known_has_a_strict_json_form() -> None:
    values = summarise([fault("a")]).to_dict()
    assert (values["reward"]["mean"], values["passed"]["mean"], values["seconds"]) == (None, None, None)
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert summarise([rollout("a", reward=0.5)]).to_dict()["reward"]["mean"] == 0.5


def test_the_first_error_of_each_kind_is_kept_in_one_line() -> None:
    found = [
        rollout("a"),
        fault("b", kind="engine", error="lost\n\tthe \x1b[31mconnection  again"),
        fault("c", 1, kind="engine", error="another"),
        fault("d", kind="reward:exact", error=None),
        fault("e", kind="reward:exact", error="x" * 1000),
        rollout("f", outcome=Outcome.MODEL_FAULT, fault="model", error="no call"),
    ]
    errors = summarise(found).first_errors
    assert list(errors) == ["engine", "reward:exact", "model"]
    assert errors["engine"] == FirstError("b", 0, "lost the [31mconnection again")
    assert (errors["reward:exact"].task, len(errors["reward:exact"].text)) == ("e", 200)
    assert errors["model"].text == "no call"
    assert summarise([rollout("a")]).first_errors == {}


def test_a_comparison_pairs_the_tasks() -> None:
    # The tasks differ far more than the two models: only pairing shows that the second is better.
    first = [rollout(str(task), 0, float(task)) for task in range(10)]
    second = [rollout(str(task), 0, task + 0.1 + 0.01 * (task % 2)) for task in range(10)]
    found = compare(first, second)
    assert (found.tasks, found.first) == (10, 4.5)
    assert found.second == pytest.approx(4.605)
    assert found.difference.mean == pytest.approx(0.105)
    assert found.clear
    back = compare(second, first)
    assert back.difference.mean == pytest.approx(-0.105)
    assert back.clear
    assert not compare(first, first).clear


def test_a_comparison_is_of_shared_tasks_and_of_scored_last_attempts() -> None:
    first = [rollout("a", 0, 0.0), rollout("a", 1, 1.0), rollout("b"), rollout("only first"), fault("c")]
    second = [fault("a"), rollout("a", 0, 1.0), fault("b"), rollout("c"), rollout("only second")]
    found = compare(first, second)
    assert (found.tasks, found.first, found.second, found.difference) == (1, 0.5, 1.0, Interval(0.5))
    assert not found.clear
    again = compare([rollout("a", 0, 0.0), rollout("a", 0, 1.0)], [rollout("a", 0, 1.0)])
    assert again.difference.mean == 0.0


def test_a_comparison_without_shared_tasks_claims_nothing() -> None:
    found = compare([rollout("a")], [rollout("b")])
    assert found.tasks == 0
    assert math.isnan(found.difference.mean)
    assert not found.clear
