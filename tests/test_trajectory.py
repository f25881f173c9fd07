import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhub import Trajectory
from envhub.trajectory import TokenRecordError


def _turn(record: Trajectory, leaf: int, ids: list[int], turn: int) -> int:
    given_ids = record.path_ids(leaf)
    return record.add_sampled(leaf, given_ids, ids, [-0.5] * len(ids), [turn] * len(ids), turn=turn)


def test_a_path_is_exactly_what_was_added() -> None:
    record = Trajectory()
    leaf = record.add_rendered(None, [1, 2, 3], turn=0)
    leaf = _turn(record, leaf, [4, 5], 0)
    leaf = record.add_rendered(leaf, [6], turn=1)
    leaf = _turn(record, leaf, [7], 1)
    (sample,) = record.samples()
    assert sample.token_ids == [1, 2, 3, 4, 5, 6, 7] == record.path_ids(leaf)
    assert sample.mask == [False] * 3 + [True] * 2 + [False, True]
    assert sample.turns == [-1, -1, -1, 0, 0, -1, 1]
    assert sample.versions == [-1, -1, -1, 0, 0, -1, 1]
    assert sample.logprobs == [0, 0, 0, -0.5, -0.5, 0, -0.5]


def test_what_the_engine_was_given_must_be_the_recorded_path() -> None:
    record = Trajectory()
    leaf = record.add_rendered(None, [1, 2, 3], turn=0)
    with pytest.raises(TokenRecordError, match="differ from the recorded 3 at position 1"):
        record.add_sampled(leaf, [1, 9, 3], [4], [0.0], [0], turn=0)
    with pytest.raises(TokenRecordError, match="at position 2"):
        record.add_sampled(leaf, [1, 2], [4], [0.0], [0], turn=0)


@pytest.mark.parametrize(("logprobs", "versions"), [([0.0], [0, 0]), ([0.0, 0.0], [0])])
def test_every_sampled_token_has_a_logprob_and_a_version(logprobs: list[float], versions: list[int]) -> None:
    record = Trajectory()
    leaf = record.add_rendered(None, [1], turn=0)
    with pytest.raises(TokenRecordError, match="2 sampled tokens came with"):
        record.add_sampled(leaf, [1], [4, 5], logprobs, versions, turn=0)


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [([2.0], [0.0]), (["a"], [0.0]), ([1 << 31], [0.0]), ([2], [None]), ([2], ["low"])],
    ids=["id with a fraction", "id of text", "id of 32 bits", "no logprob", "logprob of text"],
)
def test_tokens_are_integers_with_numbers_for_logprobs(ids: list[int], logprobs: list[float]) -> None:
    record = Trajectory()
    leaf = record.add_rendered(None, [1], turn=0)
    with pytest.raises(TokenRecordError, match="turn 3: tokens that are no integers"):
        record.add_sampled(leaf, [1], ids, logprobs, [0], turn=3)
    assert record.path_ids(leaf) == [1]


def test_a_rewritten_history_forks_and_keeps_the_sampled_tokens_trainable_once() -> None:
    record = Trajectory()
    first = record.add_rendered(None, [1, 2], turn=0)
    leaf = _turn(record, first, [3, 4], 0)
    leaf = record.fork(leaf, [1, 2, 4, 8], turn=1, cause="template_strips_reasoning")
    leaf = _turn(record, leaf, [9], 1)
    assert record.path_ids(leaf) == [1, 2, 4, 8, 9]
    samples = record.samples()
    assert [sample.token_ids for sample in samples] == [[1, 2, 3, 4], [1, 2, 4, 8, 9]]
    assert [sample.action_tokens for sample in samples] == [2, 1]
    assert record.fork_causes == {"template_strips_reasoning": 1}
    assert record.forks[0].position == 2


def test_a_sampled_segment_shared_by_two_paths_is_trained_in_the_first() -> None:
    record = Trajectory()
    leaf = _turn(record, record.add_rendered(None, [1], turn=0), [2, 3], 0)
    one = _turn(record, record.add_rendered(leaf, [4], turn=1), [5], 1)
    other = _turn(record, record.add_rendered(leaf, [6], turn=1), [7, 7], 1)
    assert record.path_ids(one) == [1, 2, 3, 4, 5]
    assert record.path_ids(other) == [1, 2, 3, 6, 7, 7]
    assert [sample.action_tokens for sample in record.samples()] == [3, 2]
    assert record.action_tokens == 5


steps = st.lists(
    st.tuples(
        st.sampled_from(["go", "fork", "branch"]),
        st.lists(st.integers(0, 3), max_size=4),
        st.lists(st.integers(0, 3), max_size=4),
    ),
    max_size=12,
)


@given(steps)
def test_every_path_is_the_concatenation_of_its_segments_and_every_action_token_is_trained_once(plan) -> None:
    record = Trajectory()
    leaf = record.add_rendered(None, [0, 1], turn=0)
    expected = {leaf: [0, 1]}
    for turn, (kind, rendered, sampled) in enumerate(plan):
        if kind == "fork":
            ids = [*expected[leaf][: len(expected[leaf]) // 2], 7, *rendered]
            leaf = record.fork(leaf, ids, turn=turn, cause="edited")
            expected[leaf] = ids
        else:
            parent = leaf if kind == "go" else len(record.segments) // 2
            leaf = record.add_rendered(parent, rendered, turn=turn)
            expected[leaf] = [*expected[parent], *rendered]
        before = list(expected[leaf])
        leaf = _turn(record, leaf, sampled, turn)
        expected[leaf] = [*before, *sampled]
    for index, ids in expected.items():
        assert record.path_ids(index) == ids
    assert sum(sample.action_tokens for sample in record.samples()) == record.action_tokens
    back = Trajectory.from_dict(json.loads(json.dumps(record.to_dict())))
    assert back == record
    assert back.samples() == record.samples()


def test_an_uneven_record_is_refused_on_reading() -> None:
    record = Trajectory()
    _turn(record, record.add_rendered(None, [1], turn=0), [2, 3], 0)
    value = record.to_dict()
    value["segments"][1]["logprobs"].pop()
    with pytest.raises(TokenRecordError, match="uneven"):
        Trajectory.from_dict(value)
