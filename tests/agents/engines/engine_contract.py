"""What every engine that runs a model folder must do. A test module brings the fixtures `engine` and `reference`."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from envhub import Limits, Outcome
from envhub.agents.engines import Engine, Generation, Request, SamplingParams, WeightUpdate
from envhub.agents.executors import MultiTurnExecutor
from envhub.agents.models import resolve_model
from envhub.agents.rendering import load_renderer
from envhub.driver import Driver
from envhub.errors import EngineFault, UserError
from envhub.rollout import Rollout
from envhub.specs import EnvironmentSpec
from envhub.trainer.algorithms import GRPO
from envhub.trainer.batch import build_rows
from envhub.trainer.model import TokenScorer

TOLERANCE = 1e-4
FREE = SamplingParams(ignore_eos=True)
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
TWO_TURNS = """
class TwoTurns(Environment):
    async def reset(self, *, seed=None, options=None):
        self.turns = 0
        return "Name a colour.", {}
    async def step(self, action):
        self.turns += 1
        return "And now an animal.", float(len(action.text) % 3), self.turns == 2, False, {}
"""


class Reference:
    """The model as transformers computes it in float32, one sequence at a time; what engines are compared with."""

    def __init__(self) -> None:
        self.folder = resolve_model("tiny").path
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        self.model.eval().requires_grad_(False)

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self.tokenizer(text).input_ids)

    def distribution(self, prompt: Sequence[int]) -> torch.Tensor:
        """Probabilities [vocabulary] of the token after the prompt."""
        return self.model(torch.tensor([list(prompt)])).logits[0, -1].float().softmax(-1)

    def logprobs(self, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """The logprob [tokens] of each token after the prompt and the tokens before it."""
        ids = torch.tensor([[*prompt, *tokens]])
        rows = (self.model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature).log_softmax(-1)
        return rows.gather(1, torch.tensor(list(tokens))[:, None])[:, 0]

    def perturb(self) -> None:
        """Change every weight a little."""
        for parameter in self.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)

    def restore(self, engine: Engine) -> WeightUpdate:
        """An update with the weights as they are now."""
        return WeightUpdate(engine.weight_version + 1, dict(self.model.state_dict()))


def worst(reference: Reference, request: Request, generation: Generation) -> float:
    """The largest distance of a reported logprob from the reference."""
    expected = reference.logprobs(request.token_ids, generation.token_ids, request.sampling.temperature or 1.0)
    return float((expected - torch.tensor(generation.logprobs)).abs().max())


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fails after a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def begun(engine: Engine, request: Request) -> "asyncio.Task[Generation]":
    """Start a request and wait until its first tokens were sampled."""
    before = engine.stats().sampled_tokens
    task = asyncio.create_task(engine.generate(request))
    await until(lambda: engine.stats().sampled_tokens > before)
    return task


def many(reference: Reference, count: int = 12) -> list[Request]:
    """Requests of different prompts, lengths and temperatures."""
    return [
        Request(
            f"many-{i}", reference.ids(f"The quick brown fox {i} jumps over " * (1 + i % 4)), 8 + 3 * i,
            SamplingParams(temperature=(1.0, 0.7)[i % 2], ignore_eos=True),
        )
        for i in range(count)
    ]  # fmt: skip


class EngineContract:
    """Inherit as a class of tests."""

    async def test_logprobs_are_those_of_the_model(self, engine: Engine, reference: Reference) -> None:
        requests = many(reference)
        generations = await asyncio.gather(*map(engine.generate, requests))
        for request, generation in zip(requests, generations, strict=True):
            assert len(generation.token_ids) == len(generation.logprobs) == len(generation.versions)
            assert len(generation.token_ids) == request.max_tokens
            assert generation.finish_reason == "length"
            assert list(generation.prompt_token_ids or ()) == list(request.token_ids)
            assert worst(reference, request, generation) < TOLERANCE

    async def test_logprobs_are_of_the_truncated_distribution(self, engine: Engine, reference: Reference) -> None:
        prompt = reference.ids("A short story about")
        sampling = SamplingParams(top_k=5, ignore_eos=True)
        generations = await asyncio.gather(*[engine.generate(Request(f"k{i}", prompt, 1, sampling)) for i in range(16)])
        best = reference.distribution(prompt).topk(5)
        expected = dict(zip(best.indices.tolist(), (best.values / best.values.sum()).log().tolist(), strict=True))
        for generation in generations:
            assert generation.logprobs[0] == pytest.approx(expected[generation.token_ids[0]], abs=TOLERANCE)

    @pytest.mark.parametrize("source", ["tensors", "file", "folder"])
    async def test_an_update_reaches_prompts_asked_before(
        self, engine: Engine, reference: Reference, source: str, tmp_path: Path
    ) -> None:
        prompt = reference.ids("Once upon a time there was a model. " * 8)  # long enough for a prefix cache
        await engine.generate(Request("before", prompt, 4, FREE))
        reference.perturb()
        version, updates = engine.weight_version + 1, engine.stats().weight_updates
        if source == "tensors":
            update = WeightUpdate(version, dict(reference.model.state_dict()))
        else:
            reference.model.save_pretrained(tmp_path)
            update = WeightUpdate(version, path=tmp_path / "model.safetensors" if source == "file" else tmp_path)
        await engine.update_weights(update)
        requests = [Request("after", prompt, 24, FREE), *many(reference, 6)]
        for request, generation in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
            assert worst(reference, request, generation) < TOLERANCE
            assert set(generation.versions) == {version}
        assert engine.stats().weight_version == engine.weight_version == version
        assert engine.stats().weight_updates == updates + 1

    async def test_an_update_meets_a_running_request(self, engine: Engine, reference: Reference) -> None:
        old = copy.deepcopy(reference)
        request = Request("long", reference.ids("Once upon a time"), 400, FREE)
        first = engine.weight_version
        task = await begun(engine, request)
        reference.perturb()
        await engine.update_weights(reference.restore(engine))
        generation = await task
        versions = list(generation.versions)
        assert versions == sorted(versions)
        assert set(versions) == {first, first + 1}
        turn = versions.index(first + 1)
        # The keys and values of earlier tokens are computed anew: each part is what its weights alone would give.
        expected = [model.logprobs(request.token_ids, generation.token_ids) for model in (old, reference)]
        reported = torch.tensor(generation.logprobs)
        assert (expected[0][:turn] - reported[:turn]).abs().max() < TOLERANCE
        assert (expected[1][turn:] - reported[turn:]).abs().max() < TOLERANCE

    async def test_an_update_without_usable_weights_is_refused(
        self, engine: Engine, reference: Reference, tmp_path: Path
    ) -> None:
        version = engine.weight_version
        (tmp_path / "broken.safetensors").write_bytes(b"not tensors")
        for update in (
            WeightUpdate(version + 1),
            WeightUpdate(version + 1, {}),
            WeightUpdate(version + 1, path=tmp_path / "broken.safetensors"),
            WeightUpdate(version + 1, path=tmp_path / "nothing.safetensors"),
        ):
            with pytest.raises(EngineFault):
                await engine.update_weights(update)
        assert engine.weight_version == version
        request = many(reference, 1)[0]
        assert worst(reference, request, await engine.generate(request)) < TOLERANCE

    async def test_an_update_of_some_tensors_keeps_the_others(
        self, engine: Engine, reference: Reference, tmp_path: Path
    ) -> None:
        chosen = dict(list(reference.model.named_parameters())[-3:])
        for parameter in chosen.values():
            parameter.add_(torch.randn_like(parameter) * 0.02)
        save_file(chosen, tmp_path / "some.safetensors")
        await engine.update_weights(WeightUpdate(engine.weight_version + 1, path=tmp_path / "some.safetensors"))
        for request in many(reference, 2):
            assert worst(reference, request, await engine.generate(request)) < TOLERANCE

    async def test_no_turn_is_longer_than_its_budget(self, engine: Engine, reference: Reference) -> None:
        prompt = reference.ids("Say")
        stops = (reference.tokenizer.eos_token_id,)
        requests = [Request(f"budget-{i}", prompt, 1 + i % 5, SamplingParams(), stops) for i in range(20)]
        for request, generation in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
            assert 1 <= len(generation.token_ids) <= request.max_tokens
            ended = generation.token_ids[-1] in stops
            assert generation.finish_reason == ("stop" if ended else "length")

    async def test_a_stop_token_ends_the_turn_and_is_part_of_it(self, engine: Engine, reference: Reference) -> None:
        prompt = reference.ids("The first of all")
        free = (await engine.generate(Request("free", prompt, 16, GREEDY))).token_ids
        stop = free[5]
        stopped = await engine.generate(Request("stop", prompt, 16, SamplingParams(temperature=0), (stop,)))
        assert stopped.token_ids == free[: free.index(stop) + 1]
        assert stopped.finish_reason == "stop"
        ignored = await engine.generate(Request("ignored", prompt, 16, GREEDY, (stop,)))
        assert ignored.token_ids == free
        assert ignored.finish_reason == "length"

    async def test_only_the_requests_own_stop_tokens_end_a_turn(self, engine: Engine, reference: Reference) -> None:
        eos = reference.tokenizer.eos_token_id
        prompt = reference.ids("Tell me")
        sampling = SamplingParams(temperature=2.0)  # flat: the end token comes up
        requests = [Request(f"own-{i}", prompt, 200, sampling) for i in range(24)]
        generations = await asyncio.gather(*map(engine.generate, requests))
        assert any(eos in generation.token_ids for generation in generations)
        assert all(len(generation.token_ids) == 200 for generation in generations)

    async def test_no_stop_token_before_the_minimum(self, engine: Engine, reference: Reference) -> None:
        prompt = reference.ids("The first of all")
        stop = (await engine.generate(Request("free", prompt, 1, GREEDY))).token_ids[0]
        sampling = SamplingParams(temperature=0, min_tokens=6)
        generation = await engine.generate(Request("least", prompt, 16, sampling, (stop,)))
        assert stop not in generation.token_ids[:6]
        assert len(generation.token_ids) >= 6

    async def test_temperature_zero_takes_the_most_likely_token(self, engine: Engine, reference: Reference) -> None:
        prompt = reference.ids("In the beginning")
        one = SamplingParams(top_k=1, ignore_eos=True)
        requests = [Request(f"greedy-{i}", prompt, 12, one if i == 3 else GREEDY) for i in range(4)]
        generations = await asyncio.gather(*map(engine.generate, requests))
        expected: list[int] = []
        for _ in range(12):
            expected.append(int(reference.distribution([*prompt, *expected]).argmax()))
        assert [list(generation.token_ids) for generation in generations] == [expected] * 4
        assert worst(reference, requests[0], generations[0]) < TOLERANCE

    async def test_a_stop_string_ends_the_turn(self, engine: Engine, reference: Reference) -> None:
        prompt = reference.ids("Once upon a time")
        free = (await engine.generate(Request("free", prompt, 24, GREEDY))).token_ids
        decode = reference.tokenizer.decode
        stop = decode(list(free[4:7])).strip()
        assert stop
        sampling = SamplingParams(temperature=0, stop=(stop,))
        generation = await engine.generate(Request("stop", prompt, 24, sampling))
        assert generation.finish_reason == "stop"
        assert generation.token_ids == free[: len(generation.token_ids)]
        assert stop in decode(list(generation.token_ids))
        assert stop not in decode(list(generation.token_ids[:-1]))

    async def test_cancelling_frees_the_slot(self, engine: Engine, reference: Reference) -> None:
        request = Request("gone", reference.ids("Once upon a time"), 3000, FREE)
        tasks = [await begun(engine, request)]
        tasks.append(asyncio.create_task(engine.generate(Request("gone too", request.token_ids, 3000, FREE))))
        await asyncio.sleep(0)
        assert engine.stats().running >= 1
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
        again = await engine.generate(Request("gone", request.token_ids, 8, FREE))  # the same id is free again
        assert len(again.token_ids) == 8
        await until(lambda: engine.stats().running == 0)

    async def test_nothing_comes_while_paused(self, engine: Engine, reference: Reference) -> None:
        running = await begun(engine, Request("running", reference.ids("Once upon a time"), 300, FREE))
        await engine.pause()
        waiting = asyncio.create_task(engine.generate(Request("waiting", reference.ids("Now"), 4, FREE)))
        await asyncio.sleep(0.05)  # what was sampled before the pause may still arrive
        sampled = engine.stats().sampled_tokens
        reference.perturb()
        await engine.update_weights(reference.restore(engine))
        done, _ = await asyncio.wait([running, waiting], timeout=0.3)
        assert not done
        assert engine.stats().sampled_tokens == sampled
        await engine.resume()
        assert len((await running).token_ids) == 300
        assert set((await waiting).versions) == {engine.weight_version}

    async def test_a_bad_prompt_harms_nobody_else(self, engine: Engine, reference: Reference) -> None:
        good = asyncio.create_task(engine.generate(Request("good", reference.ids("Once upon a time"), 100, FREE)))
        assert engine.max_context is not None
        for prompt in ([], [10_000_000], [5] * (engine.max_context + 1)):
            with pytest.raises(EngineFault):
                await engine.generate(Request("bad", prompt, 4, FREE))
        assert len((await good).token_ids) == 100

    async def test_a_turn_ends_where_the_context_is_full(self, engine: Engine, reference: Reference) -> None:
        assert engine.max_context is not None
        prompt = (reference.ids("Once upon a time ") * engine.max_context)[: engine.max_context - 5]
        generation = await engine.generate(Request("full", prompt, 50, FREE))
        assert len(generation.token_ids) == 5
        assert generation.finish_reason == "length"

    async def test_images_are_refused(self, engine: Engine, reference: Reference) -> None:
        from envhub import ImagePart

        image = ImagePart(b"", "image/png")
        with pytest.raises(UserError, match="images"):
            await engine.generate(Request("image", reference.ids("See"), 4, images=(image,)))

    async def test_trainer_and_engine_agree_about_an_episode(
        self, engine: Engine, reference: Reference, write_environment: Callable[..., EnvironmentSpec]
    ) -> None:
        spec = write_environment(TWO_TURNS, "TwoTurns")
        executor = MultiTurnExecutor(engine, load_renderer(reference.folder))
        limits = Limits(max_turn_tokens=24)
        task = Driver(spec).tasks.get("train", 0)
        rollouts = await asyncio.gather(
            *[executor.run(spec, task, limits=limits, group="g", member=i) for i in range(4)]
        )
        assert_trainer_agrees(reference, rollouts)


def assert_trainer_agrees(reference: Reference, rollouts: Sequence[Rollout]) -> None:
    """Every sampled token's logprob is the trainer's, in a teacher-forced pass over the recorded samples."""
    assert all(rollout.outcome is Outcome.FINISHED for rollout in rollouts)
    assert all(len(rollout.turns) == 2 for rollout in rollouts)
    rows = build_rows(rollouts, GRPO)
    scored, _ = TokenScorer(reference.model)(rows.token_ids, rows.lengths, rows.mask)
    assert rows.action_tokens == sum(turn.sampled_tokens for rollout in rollouts for turn in rollout.turns)
    assert ((scored - rows.behaviour) * rows.mask).abs().max() < TOLERANCE
