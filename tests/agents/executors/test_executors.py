import asyncio
import math
import threading
from typing import ClassVar

import pytest

from envhub import Action, Limits, Outcome
from envhub.agents.engines.base import Engine, EngineStats, Generation, Request, SamplingParams
from envhub.agents.executors import MultiTurnExecutor, SingleTurnExecutor
from envhub.agents.rendering import ByteRenderer
from envhub.agents.rendering.base import Continuation, TemplateError
from envhub.driver import Driver
from envhub.errors import EngineFault, UserError
from envhub.trajectory import SAMPLED


def _task(spec, index: int = 0):
    return Driver(spec).tasks.get("train", index)


def _stop_after(turns: int):
    return lambda messages, request: "stop" if request.turn == turns - 1 else f"go {request.turn}"


async def test_an_episode_alternates_until_the_task_ends(counter, executor_of) -> None:
    rollout = await executor_of(_stop_after(3)).run(counter, _task(counter))
    assert rollout.outcome is Outcome.FINISHED
    assert [turn.action.text for turn in rollout.turns] == ["go 0", "go 1", "stop"]
    assert rollout.reward == 3.0
    assert rollout.fault is None
    assert [message.role for message in rollout.messages] == ["user", "assistant"] * 3 + ["user"]
    assert not executor_of(_stop_after(1)).in_flight


async def test_the_record_holds_what_the_engine_was_given_and_sampled(counter, executor_of) -> None:
    given = []

    def policy(messages, request):
        given.append(list(request.token_ids))
        return "stop" if request.turn == 2 else "é go"

    rollout = await executor_of(policy).run(counter, _task(counter))
    trajectory = rollout.trajectory
    sampled = [i for i, segment in enumerate(trajectory.segments) if segment.origin == SAMPLED]
    assert [trajectory.path_ids(trajectory.segments[i].parent) for i in sampled] == given
    (sample,) = trajectory.samples()
    assert sample.action_tokens == rollout.action_tokens
    renderer = ByteRenderer()
    assert renderer.render(rollout.messages[:1]) == given[0]
    full = renderer.render(rollout.messages[:-2], ())
    assert full == given[-1]


async def test_an_environments_own_limit_is_kept_apart_from_its_end(counter, executor_of) -> None:
    rollout = await executor_of(lambda messages, request: "cut").run(counter, _task(counter))
    assert rollout.outcome is Outcome.TRUNCATED_ENVIRONMENT


@pytest.mark.parametrize("turns", [1, 2, 5])
async def test_turns_are_limited_exactly(counter, executor_of, turns: int) -> None:
    rollout = await executor_of(lambda m, r: "go").run(counter, _task(counter), limits=Limits(max_turns=turns))
    assert (rollout.outcome, len(rollout.turns)) == (Outcome.TRUNCATED_TURNS, turns)


async def test_the_single_turn_executor_plays_one_turn_like_the_other(counter, executor_of) -> None:
    task = _task(counter)
    single = await executor_of(lambda m, r: "stop", SingleTurnExecutor).run(counter, task)
    multi = await executor_of(lambda m, r: "stop").run(counter, task)
    assert single.outcome is multi.outcome is Outcome.FINISHED
    assert single.trajectory == multi.trajectory
    assert (
        await executor_of(lambda m, r: "go", SingleTurnExecutor).run(counter, task)
    ).outcome is Outcome.TRUNCATED_TURNS


@pytest.mark.parametrize("per_turn", [1, 3, 10])
@pytest.mark.parametrize("per_episode", [1, 7, 25])
async def test_token_limits_hold_exactly(counter, executor_of, per_turn: int, per_episode: int) -> None:
    limits = Limits(max_turns=50, max_turn_tokens=per_turn, max_episode_tokens=per_episode)
    rollout = await executor_of(lambda m, r: "x" * 100).run(counter, _task(counter), limits=limits)
    counts = [turn.sampled_tokens for turn in rollout.turns]
    assert rollout.outcome is Outcome.TRUNCATED_TOKENS
    assert sum(counts) == per_episode
    assert max(counts) <= per_turn
    assert all(turn.action.finish_reason == "length" for turn in rollout.turns)


async def test_the_context_limit_counts_prompt_and_output(counter, executor_of) -> None:
    executor = executor_of(lambda m, r: "x" * 1000)
    limits = Limits(max_turns=50, max_turn_tokens=20, max_context_tokens=100)
    rollout = await executor.run(counter, _task(counter), limits=limits)
    (leaf,) = rollout.trajectory.leaves
    assert rollout.outcome is Outcome.TRUNCATED_CONTEXT
    sampled = [i for i, segment in enumerate(rollout.trajectory.segments) if segment.origin == SAMPLED]
    assert max(len(rollout.trajectory.path_ids(i)) for i in sampled) <= 100
    executor.engine.max_context = 60
    assert (await executor.run(counter, _task(counter))).outcome is Outcome.TRUNCATED_CONTEXT
    assert leaf >= 0


async def test_a_prompt_that_does_not_fit_is_truncated_without_a_turn(counter, executor_of) -> None:
    rollout = await executor_of(lambda m, r: "x").run(counter, _task(counter), limits=Limits(max_context_tokens=5))
    assert (rollout.outcome, rollout.turns) == (Outcome.TRUNCATED_CONTEXT, [])


async def test_sampling_parameters_cap_a_turn_and_reach_the_engine_unshared(counter, executor_of) -> None:
    seen = []

    def policy(messages, request):
        seen.append(request.sampling)
        return "stop" * 10

    executor = executor_of(policy)
    first, second = SamplingParams(temperature=0.5, max_tokens=3), SamplingParams(temperature=0.7)
    limits = Limits(max_turns=1)
    rollouts = await asyncio.gather(
        executor.run(counter, _task(counter), sampling=first, limits=limits),
        executor.run(counter, _task(counter), sampling=second, limits=limits),
    )
    assert sorted(params.temperature for params in seen) == [0.5, 0.7]
    assert [rollout.sampling["temperature"] for rollout in rollouts] == [0.5, 0.7]
    assert [rollout.action_tokens for rollout in rollouts] == [3, 41]


async def test_a_stop_string_ends_the_text(counter, executor_of) -> None:
    rollout = await executor_of(lambda m, r: "stop##rest").run(
        counter, _task(counter), sampling=SamplingParams(stop=("##",)), limits=Limits(max_turns=1)
    )
    assert rollout.turns[0].action.text == "stop"


@pytest.mark.parametrize(
    ("step", "outcome", "fault", "error"),
    [
        ("raise KeyError('lost')", Outcome.ENVIRONMENT_FAULT, "environment", "KeyError: 'lost'"),
        ("raise ModelFault('no move')", Outcome.MODEL_FAULT, "model", "no move"),
        ("time.sleep(1)", Outcome.ENVIRONMENT_FAULT, "deadline", "did not return within 0.2 s"),
        ("return 'x', float('inf'), False, False, {}", Outcome.ENVIRONMENT_FAULT, "environment", "not a finite number"),
    ],
)
async def test_what_fails_costs_its_rollout_only(write_environment, executor_of, step, outcome, fault, error) -> None:
    body = f"""
class Probe(Environment):
    def reset(self, *, seed=None, options=None):
        return "x", {{}}
    def step(self, action):
        {step}
"""
    spec = write_environment(body)
    rollout = await executor_of(lambda m, r: "go").run(spec, _task(spec), limits=Limits(step_seconds=0.2))
    assert (rollout.outcome, rollout.fault) == (outcome, fault)
    assert error in rollout.error
    assert rollout.reward == 0.0
    assert len(rollout.turns) == 1


async def test_the_episodes_time_ends_it_and_says_where(counter, executor_of) -> None:
    async def slow(messages, request):
        await asyncio.sleep(30)

    executor = MultiTurnExecutor(_Engine(slow), ByteRenderer())
    rollout = await executor.run(counter, _task(counter), limits=Limits(episode_seconds=0.2))
    assert rollout.outcome is Outcome.TRUNCATED_TIME
    assert "while in generate" in rollout.error
    rollout = await executor.run(counter, _task(counter), limits=Limits(turn_seconds=0.2))
    assert (rollout.outcome, rollout.fault) == (Outcome.ENGINE_FAULT, "engine")
    assert "did not finish turn 0 within 0.2 s" in rollout.error


class _Engine(Engine):
    """An engine that does what a function says."""

    name = "probe"

    def __init__(self, act) -> None:
        self.act = act

    async def generate(self, request: Request) -> Generation:
        return await self.act(request.messages, request)


@pytest.mark.parametrize(
    ("generation", "error"),
    [
        (Generation((1, 2, 3), (0.0,) * 3, (0,) * 3), "sampled 3 tokens where 2 were allowed"),
        (Generation((1,), (math.nan,), (0,)), "logprob that is not finite"),
        (Generation((1, 2), (0.0,), (0,)), "2 sampled tokens came with 1 logprobs"),
        (Generation((1,), (0.0,), (0,), prompt_token_ids=[1, 2]), "was given 2 tokens that differ from the recorded"),
    ],
)
async def test_what_an_engine_does_wrong_is_an_engine_fault(counter, generation: Generation, error: str) -> None:
    async def act(messages, request):
        return generation

    executor = MultiTurnExecutor(_Engine(act), ByteRenderer())
    rollout = await executor.run(counter, _task(counter), limits=Limits(max_turn_tokens=2))
    assert rollout.outcome is Outcome.ENGINE_FAULT
    assert error in rollout.error


async def test_an_engine_that_fails_is_an_engine_fault(counter) -> None:
    async def act(messages, request):
        raise EngineFault("gone")

    rollout = await MultiTurnExecutor(_Engine(act), ByteRenderer()).run(counter, _task(counter))
    assert (rollout.outcome, rollout.error) == (Outcome.ENGINE_FAULT, "gone")
    assert _Engine(act).stats() == EngineStats()


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        (KeyError("lost"), "engine 'probe' raised KeyError: 'lost'"),
        (asyncio.CancelledError(), "engine 'probe' was cancelled from inside in generate"),
        (TimeoutError("slow"), "engine 'probe' raised TimeoutError: slow"),
    ],
)
async def test_an_engine_that_raises_costs_a_rollout(counter, problem: BaseException, error: str) -> None:
    async def act(messages, request):
        raise problem

    rollout = await MultiTurnExecutor(_Engine(act), ByteRenderer()).run(counter, _task(counter))
    assert (rollout.outcome, rollout.error) == (Outcome.ENGINE_FAULT, error)


class _Refusing(ByteRenderer):
    """Refuses conversations in which a word stands, as a chat template may; counts where it renders."""

    threads: ClassVar[set[int]] = set()

    def render(self, messages, tools=()):
        self.threads.add(threading.get_ident())
        if any("forbidden" in message.text for message in messages):
            raise TemplateError("the template refuses it")
        return super().render(messages, tools)


async def test_a_conversation_that_the_template_refuses_is_a_fault(write_environment) -> None:
    from envhub.agents.engines.scripted import ScriptedEngine

    spec = write_environment("class Probe(Environment):\n    def reset(self, **given): return 'forbidden', {}\n")
    rollout = await MultiTurnExecutor(ScriptedEngine("null"), _Refusing()).run(spec, _task(spec))
    assert (rollout.fault, rollout.error) == ("environment", "the template refuses it")


async def test_a_long_observation_is_rendered_off_the_event_loop(write_environment) -> None:
    from envhub.agents.engines.scripted import ScriptedEngine

    body = "class Probe(Environment):\n    def reset(self, **given): return 'x' * 200_000, {}\n"
    spec = write_environment(body)
    renderer = _Refusing()
    renderer.threads.clear()
    limits = Limits(max_context_tokens=1000)
    rollout = await MultiTurnExecutor(ScriptedEngine("null"), renderer).run(spec, _task(spec), limits=limits)
    assert rollout.outcome is Outcome.TRUNCATED_CONTEXT
    assert renderer.threads
    assert threading.get_ident() not in renderer.threads


def test_a_token_engine_needs_a_renderer() -> None:
    with pytest.raises(UserError, match="needs the model's renderer"):
        MultiTurnExecutor(_Engine(None))


async def test_a_chat_engine_plays_without_tokens(counter) -> None:
    class Chat(_Engine):
        speaks = "chat"

    async def act(messages, request):
        text = "stop" if len(messages) > 2 else "go"
        return Generation(action=Action(text, finish_reason="stop"), prompt_tokens=5, sampled_tokens=2)

    rollout = await MultiTurnExecutor(Chat(act)).run(counter, _task(counter))
    assert (rollout.outcome, rollout.reward, rollout.action_tokens) == (Outcome.FINISHED, 2.0, 4)
    assert rollout.trajectory.segments == []


class _Forgetful(ByteRenderer):
    """A template that rewrites the history from the second turn on."""

    def continue_from(self, history, sampled_ids, new, tools=()):
        if len(history) < 3:
            return super().continue_from(history, sampled_ids, new, tools)
        return Continuation(None, "template_rewrites_history")

    def render(self, messages, tools=()):
        return super().render([m for m in messages if m.role == "user"][-2:], tools)


async def test_a_rewritten_history_forks_and_is_counted(counter, executor_of) -> None:
    executor = executor_of(_stop_after(4))
    executor.renderer = _Forgetful()
    rollout = await executor.run(counter, _task(counter))
    assert rollout.outcome is Outcome.FINISHED
    assert rollout.trajectory.fork_causes == {"template_rewrites_history": 2}
    assert sum(sample.action_tokens for sample in rollout.trajectory.samples()) == rollout.action_tokens


async def test_cancelling_closes_the_environment(write_environment, executor_of, tmp_path) -> None:
    body = f"""
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        return "x", {{}}
    async def step(self, action):
        await asyncio.sleep(60)
    def close(self):
        open({str(tmp_path / "closed")!r}, "w").close()
"""
    spec = write_environment(body)
    executor = executor_of(lambda m, r: "go")
    running = asyncio.create_task(executor.run(spec, _task(spec)))
    while not any(episode.stage == "step" for episode in executor.in_flight.values()):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tmp_path / "closed").exists()
    assert not executor.in_flight


async def test_the_oracle_is_asked_for_its_action(write_environment, executor_of) -> None:
    from envhub.agents.engines.scripted import ScriptedEngine

    body = """
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        self.secret = str(self.rng.randrange(10**9))
        return "guess", {}
    async def step(self, action):
        return "", float(action.text == self.secret), True, False, {}
    def oracle(self):
        return self.secret
"""
    spec = write_environment(body)
    executor = MultiTurnExecutor(ScriptedEngine("oracle"), ByteRenderer())
    assert (await executor.run(spec, _task(spec))).reward == 1.0
