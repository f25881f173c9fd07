"""Replays: the same environment says the same again, and what differs is found where it differs."""

import json

import pytest

from envhub import Action, Limits, Rollout
from envhub.agents.engines.scripted import ScriptedEngine
from envhub.agents.executors import MultiTurnExecutor
from envhub.agents.rendering import ByteRenderer
from envhub.driver import Driver
from envhub.errors import ConfigError, NotRegisteredError
from envhub.registry import content_hash, register, spec
from envhub.replay import Difference, replay
from envhub.specs import EnvironmentSpec

BODY = """
from envhub import EnvironmentConfig, ToolSpec
class Probe(Environment):
    class Config(EnvironmentConfig):
        most: int = 1000
    isolation = {isolation!r}
    def reset(self, *, seed=None, options=None):
        self.turn = 0
        {reset}
        tools = (ToolSpec("look", "", {{"properties": {{"at": {{"enum": ("a", "b")}}}}}}),)
        return Observation((Message("user", f"begin {{self.rng.randrange(self.config.most)}}"),), tools), {{"clock": time.time()}}
    def step(self, action):
        self.turn += 1
        {step}
        said = f"turn {{self.turn}}: {{self.rng.random()}} {{len(action.text)}} {{len(action.token_ids)}}"
        return said, 0.1 * self.turn, self.turn == 3, False, {{"clock": time.time()}}
"""


def _body(step: str = "pass", reset: str = "pass", isolation: str = "thread") -> str:
    return BODY.format(step=step, reset=reset, isolation=isolation)


async def _record(found: EnvironmentSpec, words: str = "ab", **options) -> Rollout:
    """A rollout as a record gives it back: through JSON."""
    executor = MultiTurnExecutor(ScriptedEngine(lambda messages, request: words * (request.turn + 1)), ByteRenderer())
    task = Driver(found).tasks.get("train", 3)
    made = await executor.run(found, task, **options)
    return Rollout.from_dict(json.loads(json.dumps(made.to_dict())))


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_the_same_environment_says_the_same_again(write_environment, isolation: str) -> None:
    found = write_environment(_body(isolation=isolation))
    rollout = await _record(found, config={"most": 10**9})
    assert rollout.turns[0].action.token_ids == ()
    report = await replay(rollout, found)
    assert report.reproduced
    assert (report.rollout, report.environment, report.turns) == (rollout.id, "probe", 3)
    assert not report.source_changed


@pytest.mark.parametrize(
    ("step", "turn", "what"),
    [
        ("if self.turn == 2: return 'other', 0.2, False, False, {}", 1, "observation"),
        ("if self.turn == 1: action = Action(action.text + '!', token_ids=action.token_ids)", 0, "observation"),
        ("if self.turn == 3: self.turn = 3.0000001", 2, "observation"),
        ("if self.turn == 2: raise EnvironmentFault('the world ended')", 1, "fault"),
        ("if self.turn == 2: raise ModelFault('not like that')", 1, "fault"),
        ("if self.turn == 3: [][1]", 2, "fault"),
        ("if self.turn == 1: return None", 0, "fault"),
    ],
)
async def test_the_first_difference_is_found(write_environment, step: str, turn: int, what: str) -> None:
    rollout = await _record(write_environment(_body()))
    report = await replay(rollout, write_environment(_body(step)))
    assert report.first_difference is not None
    assert (report.first_difference.turn, report.first_difference.what, report.turns) == (turn, what, turn + 1)


@pytest.mark.parametrize(
    ("ending", "what", "recorded", "replayed"),
    [
        ("0.3, False, False", "reward", "0.30000000000000004", "0.3"),
        ("0.1 * 3, False, False", "terminated", "True", "False"),
        ("0.1 * 3, True, True", "truncated", "False", "True"),
    ],
)
async def test_rewards_are_compared_exactly_and_ends_are_compared(
    write_environment, ending: str, what: str, recorded: str, replayed: str
) -> None:
    first = "if self.turn == 3: return 'end', {}, {{}}"
    rollout = await _record(write_environment(_body(first.format("0.1 * 3, True, False"))))
    report = await replay(rollout, write_environment(_body(first.format(ending))))
    assert report.first_difference == Difference(2, what, recorded, replayed)


async def test_an_opening_that_differs_or_fails_is_a_difference(write_environment) -> None:
    rollout = await _record(write_environment(_body()))
    for reset, what in (("self.seed(1)", "observation"), ("raise OSError('no world')", "fault")):
        report = await replay(rollout, write_environment(_body(reset=reset)))
        assert report.first_difference is not None
        assert (report.first_difference.turn, report.first_difference.what, report.turns) == (-1, what, 0)
        assert str(report.first_difference).startswith(f"opening, {what}: recorded ")


async def test_other_tools_on_offer_are_a_difference(write_environment) -> None:
    rollout = await _record(write_environment(_body()))
    report = await replay(rollout, write_environment(_body().replace('"look"', '"see"')))
    assert report.first_difference is not None
    assert '"look"' in report.first_difference.recorded
    assert '"see"' in report.first_difference.replayed


async def test_long_texts_are_shown_where_they_part(write_environment) -> None:
    long = "return 'x' * 5000 + {!r} + 'y' * 5000, 0.0, False, False, {{}}"
    rollout = await _record(write_environment(_body(long.format("RED"))), limits=Limits(max_turns=1))
    report = await replay(rollout, write_environment(_body(long.format("BLUE"))))
    assert report.first_difference is not None
    assert "xREDy" in report.first_difference.recorded
    assert "xBLUEy" in report.first_difference.replayed
    assert len(report.first_difference.recorded) < 200


async def test_a_rollout_that_ended_in_a_fault_is_replayed_up_to_it(write_environment) -> None:
    broken = write_environment(_body("if self.turn == 3: raise ModelFault('no')"))
    rollout = await _record(broken)
    assert rollout.turns[-1].observation is None
    assert (await replay(rollout, broken)).turns == 2
    repaired = await replay(rollout, write_environment(_body()))
    assert repaired.reproduced
    never_opened = await _record(write_environment(_body(reset="raise OSError('no world')")))
    report = await replay(never_opened, write_environment(_body()))
    assert (report.turns, report.first_difference) == (0, None)


async def test_the_registered_environment_is_used_and_a_changed_source_is_said(write_environment) -> None:
    found = write_environment(_body())
    target = found.target
    register("replayed", target, persist=True)
    rollout = await _record(spec("replayed"))
    assert rollout.content_hash == content_hash(target)
    assert not (await replay(rollout)).source_changed
    write_environment(_body("'another'"))
    with pytest.warns(UserWarning, match="has changed"):
        report = await replay(rollout)
    assert report.reproduced
    assert report.source_changed


async def test_mistakes_of_the_user_are_raised(write_environment) -> None:
    found = write_environment(_body())
    rollout = await _record(found)
    rollout.target = ""  # as in a record that does not say where its class was loaded from
    with pytest.raises(NotRegisteredError, match="probe"):
        await replay(rollout)
    rollout.config = {"mots": 3}
    with pytest.raises(ConfigError, match="did you mean 'most'"):
        await replay(rollout, found)


async def test_the_environment_is_closed(write_environment, tmp_path) -> None:
    closes = f"""
    def close(self):
        with open({str(tmp_path / "closed")!r}, "a") as file:
            file.write("x")
"""
    rollout = await _record(write_environment(_body()))
    await replay(rollout, write_environment(_body("raise OSError('gone')") + closes))
    assert (tmp_path / "closed").read_text() == "x"


async def test_a_bundled_environment_is_reproduced() -> None:
    found = spec("guess_number")
    rollout = await _record(found, "5")
    assert isinstance(rollout.turns[0].action, Action)
    report = await replay(rollout)
    assert report.reproduced
    assert report.turns == len(rollout.turns)
