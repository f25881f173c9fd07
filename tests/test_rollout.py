import json

import pytest

from envhub import Action, Limits, Message, Observation, Outcome, Rollout, Task, ToolCall, Turn


def _rollout() -> Rollout:
    made = Rollout(
        "probe", Task((Message("user", "hi"),), {"a": [1]}, {"level": 2}, "t/0", "eval", 3, 9), Limits(max_turns=2)
    )
    made.opening = Observation((Message("user", "hi"),))
    action = Action("hello", (ToolCall("1", "f", {"x": 1}, '{"x": 1}'),), finish_reason="stop")
    made.turns = [
        Turn(action, Observation((Message("tool", "1"),)), 0.1, info={"k": 1}, sampled_tokens=3),
        Turn(Action("x")),
    ]
    leaf = made.trajectory.add_rendered(None, [1, 2], turn=0)
    made.trajectory.add_sampled(leaf, [1, 2], [3, 4, 5], [-0.1, -1e-17, -2.0], [1, 1, 2], turn=0, finish_reason="stop")
    made.outcome = Outcome.TRUNCATED_TURNS
    made.reward = 0.1
    return made


def test_a_record_survives_json_exactly() -> None:
    made = _rollout()
    assert Rollout.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_it_knows_its_conversation_and_its_tokens() -> None:
    made = _rollout()
    assert [message.role for message in made.messages] == ["user", "assistant", "tool", "assistant"]
    assert made.action_tokens == 3


def test_a_record_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 99"):
        Rollout.from_dict({**_rollout().to_dict(), "version": 99})


def test_every_outcome_is_of_one_kind() -> None:
    for outcome in Outcome:
        discarded = outcome in (Outcome.CANCELLED, Outcome.STALE)
        assert outcome.is_scored + outcome.is_fault + discarded == 1
        assert not (outcome.is_truncated and not outcome.is_scored)
        assert str(outcome) == outcome.value
