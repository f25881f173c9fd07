import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from envhub import Limits
from envhub.agents.engines import Engine, Request, SamplingParams, WeightUpdate, make_engine
from envhub.agents.engines.precision import choose_device, fast_dtype
from envhub.agents.models import resolve_model
from envhub.agents.session import prepare_agent, started
from envhub.driver import Driver
from envhub.errors import ConfigError, EngineFault, UserError
from envhub.specs import EnvironmentSpec

from .engine_contract import FREE, TWO_TURNS, EngineContract, Reference, assert_trainer_agrees, begun, many, worst

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the engine and the reference compute at once; their threads would wait for each other
    with torch.no_grad():
        yield Reference()
    torch.set_num_threads(threads)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(reference: Reference) -> AsyncIterator[Engine]:
    made = make_engine("transformers", str(reference.folder), options={"dtype": "float32", "max_batch": 64})
    await made.start()
    yield made
    await made.close()


class TestTransformersEngine(EngineContract):
    async def test_frequencies_follow_the_distribution(self, engine: Engine, reference: Reference) -> None:
        prompt, count, kinds = reference.ids("Once upon a"), 1024, 6
        sampling = SamplingParams(top_k=kinds)
        requests = [Request(f"f{i}", prompt, 1, sampling) for i in range(count)]
        seen = Counter(g.token_ids[0] for g in await asyncio.gather(*map(engine.generate, requests)))
        best = reference.distribution(prompt).topk(kinds)
        assert set(seen) <= set(best.indices.tolist())
        expected = (best.values / best.values.sum() * count).tolist()
        square = sum((seen[token] - n) ** 2 / n for token, n in zip(best.indices.tolist(), expected, strict=True))
        assert square < 40  # of five degrees of freedom: exceeded once in six million

    async def test_top_p_keeps_the_smallest_set_that_reaches_it(self, engine: Engine, reference: Reference) -> None:
        prompt = reference.ids("Once upon a")
        ordered, order = reference.distribution(prompt).sort(descending=True)
        kept = int((ordered.cumsum(0) < 0.6).sum()) + 1
        requests = [Request(f"p{i}", prompt, 1, SamplingParams(top_p=0.6)) for i in range(200)]
        for generation in await asyncio.gather(*map(engine.generate, requests)):
            place = order[:kept].tolist().index(generation.token_ids[0])
            expected = (ordered[place] / ordered[:kept].sum()).log()
            assert generation.logprobs[0] == pytest.approx(float(expected), abs=1e-4)

    @pytest.mark.parametrize("wrong", ["name", "shape"])
    async def test_an_update_that_does_not_fit_changes_nothing(
        self, engine: Engine, reference: Reference, wrong: str
    ) -> None:
        tensors = {name: tensor + 0.1 for name, tensor in reference.model.state_dict().items()}
        name = list(tensors)[-1]
        if wrong == "name":
            tensors["model.no_such.weight"] = torch.zeros(2)
        else:
            tensors[name] = torch.zeros(3, 5)
        version = engine.weight_version
        with pytest.raises(EngineFault, match="no_such" if wrong == "name" else "shape"):
            await engine.update_weights(WeightUpdate(version + 1, tensors))
        assert engine.weight_version == version
        for request in many(reference, 2):
            assert worst(reference, request, await engine.generate(request)) < 1e-4


async def test_more_requests_than_slots_all_end(reference: Reference) -> None:
    narrow = make_engine("transformers", str(reference.folder), options={"dtype": "float32", "max_batch": 2})
    await narrow.start()
    try:
        tasks = [asyncio.create_task(narrow.generate(Request(str(i), [5, 6, 7], 20, FREE))) for i in range(7)]
        tasks[5].cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(end, asyncio.CancelledError) for end in ends] == [i == 5 for i in range(7)]
    finally:
        await narrow.close()


async def test_a_cancelled_update_leaves_the_engine_at_work(engine: Engine, reference: Reference) -> None:
    task = await begun(engine, Request("running", reference.ids("Once upon a time"), 100, FREE))
    update = asyncio.create_task(engine.update_weights(reference.restore(engine)))
    await asyncio.sleep(0)
    update.cancel()
    assert len((await task).token_ids) == 100
    assert len((await engine.generate(Request("next", [5, 6], 4, FREE))).token_ids) == 4


async def test_closing_ends_what_waits_and_can_be_repeated(reference: Reference) -> None:
    mortal = make_engine("transformers", str(reference.folder), options={"dtype": "float32", "max_batch": 1})
    with pytest.raises(EngineFault, match="start"):
        await mortal.generate(Request("early", [5], 4, FREE))
    await mortal.start()
    running = await begun(mortal, Request("running", [5, 6], 4000, FREE))
    waiting = asyncio.create_task(mortal.generate(Request("waiting", [5, 6], 4, FREE)))
    await asyncio.sleep(0)
    await mortal.close()
    await mortal.close()
    for task in (running, waiting):
        with pytest.raises(EngineFault, match="closed"):
            await task
    assert mortal.stats().running == 0
    with pytest.raises(EngineFault):
        await mortal.generate(Request("late", [5], 4, FREE))
    with pytest.raises(EngineFault):
        await mortal.update_weights(WeightUpdate(1, {}))


FREES = """
import asyncio, gc, sys, weakref
from envhub.agents.engines import make_engine

async def main():
    gc.disable()
    engine = make_engine("transformers", sys.argv[1], options={"dtype": "float32", "device": "cpu"})
    await engine.start()
    model = weakref.ref(next(item for item in gc.get_objects() if type(item).__name__ == "LlamaForCausalLM"))
    await engine.close()
    print("freed" if model() is None else "kept")

asyncio.run(main())
"""


async def test_closing_frees_the_model(reference: Reference) -> None:
    """In a process of its own: the first model of a process sits in the reference cycles of what loaded it."""
    command = [sys.executable, "-c", FREES, str(reference.folder)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "freed\n", done.stderr


async def test_a_wrong_folder_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="cannot load"):
            await make_engine("transformers", str(folder)).start()


@pytest.mark.parametrize(("options", "says"), [({"dtype": "float7"}, "float7"), ({"device": "gpu9"}, "gpu9")])
async def test_a_wrong_format_or_device_is_named(reference: Reference, options: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        await make_engine("transformers", str(reference.folder), options=options).start()


@pytest.fixture
def gpu_beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """torch believes that there is a GPU, which emulates bfloat16, and that the CPU does so too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    fast_dtype.cache_clear()
    yield monkeypatch
    fast_dtype.cache_clear()


async def test_on_the_cpu_of_a_machine_with_a_gpu_the_cpu_says_what_is_quick(gpu_beside: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        fresh = Reference()
    engine = make_engine("transformers", str(fresh.folder), options={"device": "cpu"})
    try:
        await engine.start()
        for request in many(fresh, 2):
            assert worst(fresh, request, await engine.generate(request)) < 1e-4  # float32's, not bfloat16's
    finally:
        await engine.close()


async def test_a_gpu_that_only_emulates_bfloat16_computes_in_float16(gpu_beside: pytest.MonkeyPatch) -> None:
    assert fast_dtype("cuda") == "float16"
    assert fast_dtype("cpu") == "float32"


@pytest.mark.parametrize("device", ["gpu9", "mps", "cuda:7", "cuda:-3", "", "cuda:x"])
async def test_a_device_that_is_not_here_is_refused(gpu_beside: pytest.MonkeyPatch, device: str) -> None:
    gpu_beside.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=f"device '{device}' is not here"):
        choose_device(device)
    assert (choose_device("auto"), choose_device("cuda:1"), choose_device("cpu")) == ("cuda", "cuda:1", "cpu")


async def test_an_unknown_option_comes_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"max_batches.*did you mean 'max_batch'"):
        make_engine("transformers", "anywhere", options={"max_batches": 4})


async def test_an_opened_agent_and_the_trainer_agree(write_environment: Callable[..., EnvironmentSpec]) -> None:
    spec = write_environment(TWO_TURNS, "TwoTurns")
    task = Driver(spec).tasks.get("train", 0)
    async with started(prepare_agent("tiny", engine="transformers", options={"dtype": "float32"})) as agent:
        rollout = await agent.executor.run(spec, task, limits=Limits(max_turn_tokens=24), group="g")
    with torch.no_grad():
        assert_trainer_agrees(Reference(), [rollout])


async def test_what_a_seeded_request_samples_depends_on_no_other() -> None:
    async def asked(others: int, seed: int | None) -> tuple[int, ...]:
        engine = make_engine("transformers", str(resolve_model("tiny").path))
        await engine.start()
        try:
            requests = [Request(f"other-{i}", [7 + i, 8, 9], 12, seed=i) for i in range(others)]
            requests.append(Request("mine", [5, 6], 12, SamplingParams(ignore_eos=True), seed=seed))
            return (await asyncio.gather(*map(engine.generate, requests)))[-1].token_ids
        finally:
            await engine.close()

    alone = await asked(0, 11)
    assert await asked(9, 11) == alone
    assert await asked(0, 12) != alone
