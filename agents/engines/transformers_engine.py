"""A transformers model as an engine, in this process, with continuous batching."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

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
from envhub.agents.engines.precision import DTYPES, choose_device, fast_dtype
from envhub.agents.engines.weights import iterate_file
from envhub.environment import validate_config
from envhub.errors import EngineFault, MissingExtraError, UserError, did_you_mean

if TYPE_CHECKING:
    from envhub.agents.engines.batching import Batch, Sequence

_STOP_SECONDS = 30.0


class TransformersOptions(BaseModel):
    """Options of the transformers engine.

    `dtype` is `auto` (what this machine computes quickly), `float32`, `bfloat16` or `float16`; `device` is `auto` (CUDA
    where there is one), `cpu` or `cuda`. `max_context` in tokens (None: the model's own). `max_batch` sequences are decoded at once.
    `seed` is that of its own random generator. An engine that is idle begins when no request came for `gather_seconds`:
    what is asked at one time is then decoded in one batch, which repeats a run bit by bit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    dtype: str = "auto"
    device: str = "auto"
    max_context: ContextLength | None = None
    max_batch: BatchSize = 32
    seed: Seed = 0
    gather_seconds: float = Field(0.0, ge=0, le=10)

    @field_validator("dtype")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in DTYPES:
            raise ValueError(f"it is one of {', '.join(DTYPES)}{did_you_mean(value, DTYPES)}")
        return value


@dataclass(slots=True, eq=False)
class _Job:
    """A request on its way: what the batch decodes, and the one who waits for it."""

    sequence: "Sequence"
    future: "Future[Generation]"


@dataclass(slots=True)
class _Work:
    """What other threads ask of the decoding thread; every access holds `lock`. Nothing is taken after `ended`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: list[_Job] = field(default_factory=list)
    cancelled: list[_Job] = field(default_factory=list)
    commands: list[tuple[Callable[[], None], "Future[None]"]] = field(default_factory=list)
    stop: bool = False
    ended: bool = False


class TransformersEngine(Engine):
    """Decodes all running sequences together, one token a step; sequences join and leave between steps.

    One thread owns the model. After a weight update the keys and values of running sequences are computed anew.
    """

    name = "transformers"
    takes_part = True

    def __init__(self, model: str, **options: Any) -> None:
        self.model = model
        self.options: TransformersOptions = validate_config(TransformersOptions, options, "engine 'transformers'")
        self._module: Any = None
        self._tokenizer: Any = None
        self._batch: Batch | None = None
        self._thread: threading.Thread | None = None
        self._work = _Work()
        self._wake = threading.Event()
        self._paused = False
        self._failure: BaseException | None = None
        self._stats = EngineStats()

    async def start(self) -> None:
        await asyncio.to_thread(self._load)
        self._thread = threading.Thread(target=self._serve, name="envhub-transformers", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError as problem:
            raise MissingExtraError("engine 'transformers'", "train") from problem
        from envhub.agents.engines.batching import Batch
        from envhub.agents.engines.loading import load_causal_model

        device = choose_device(self.options.device)
        dtype = fast_dtype(torch.device(device).type) if self.options.dtype == "auto" else self.options.dtype
        module = load_causal_model(self.model, getattr(torch, dtype), device)
        self._module = module.eval().requires_grad_(False)
        own = getattr(module.config.get_text_config(), "max_position_embeddings", None)
        self.max_context = min((n for n in (self.options.max_context, own) if n is not None), default=None)
        generator = torch.Generator(device).manual_seed(self.options.seed)
        self._batch = Batch(self._module, generator)

    async def generate(self, request: Request) -> Generation:
        from envhub.agents.engines.batching import Sequence

        self._check()
        if request.images:
            raise UserError("engine 'transformers' was given images; this model's renderer takes text only")
        request = self._fitted(request)
        job = _Job(Sequence(request, self._decoder() if request.sampling.stop else None), Future())
        with self._work.lock:
            self._refuse_when_ended()
            self._work.waiting.append(job)
        self._stats.requests += 1
        self._stats.prompt_tokens += len(request.token_ids)
        self._wake.set()
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            with self._work.lock:
                self._work.cancelled.append(job)
            self._wake.set()
            raise

    def _fitted(self, request: Request) -> Request:
        """The request with no more tokens than the context has room for. Raises EngineFault for a bad prompt."""
        count, words = len(request.token_ids), self._module.get_input_embeddings().num_embeddings
        if not count:
            raise EngineFault(f"request {request.id} has no prompt tokens")
        if min(request.token_ids) < 0 or max(request.token_ids) >= words:
            raise EngineFault(f"request {request.id} has token ids beyond the model's vocabulary of {words}")
        if self.max_context is None:
            return request
        if count >= self.max_context:
            raise EngineFault(f"request {request.id}: {count} prompt tokens fill the context of {self.max_context}")
        return replace(request, max_tokens=min(request.max_tokens, self.max_context - count))

    async def update_weights(self, update: WeightUpdate) -> None:
        self._check()
        await self._command(lambda: self._take_weights(update))

    async def pause(self) -> None:
        await self._command(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        await self._command(lambda: setattr(self, "_paused", False))

    def stats(self) -> EngineStats:
        self._stats.weight_version = self.weight_version
        self._stats.running = len(self._batch.sequences) if self._batch is not None else 0
        return self._stats

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            with self._work.lock:
                self._work.stop = True
            self._wake.set()
            await asyncio.to_thread(thread.join, _STOP_SECONDS)
        loaded = self._module is not None
        self._module = self._batch = None
        if loaded:
            import torch

            gc.collect()  # a model sits in reference cycles, and its memory with it
            torch.cuda.empty_cache()

    def _check(self) -> None:
        self._refuse_when_ended()
        if self._thread is None:
            raise EngineFault("the transformers engine is not running; start it first")

    def _refuse_when_ended(self) -> None:
        if self._work.ended:
            raise EngineFault(f"the transformers engine has stopped: {self._failure or 'it was closed'}")

    async def _command(self, function: Callable[[], None]) -> None:
        self._check()
        future: Future[None] = Future()
        with self._work.lock:
            self._refuse_when_ended()
            self._work.commands.append((function, future))
        self._wake.set()
        await asyncio.wrap_future(future)

    def _take_weights(self, update: WeightUpdate) -> None:
        """Copy the tensors over the model's, or none of them when one does not fit."""
        import torch

        own = dict(self._module.state_dict(keep_vars=True))
        count = 0
        for name, tensor in _tensors(update):
            if name not in own:
                raise EngineFault(f"a weight update names {name!r}, which the model does not have")
            if own[name].shape != tensor.shape:
                shapes = f"{tuple(tensor.shape)} where the model has {tuple(own[name].shape)}"
                raise EngineFault(f"a weight update gives {name!r} the shape {shapes}")
            count += 1
        if not count:
            raise EngineFault("a weight update without tensors")
        with torch.no_grad():
            for name, tensor in _tensors(update):
                own[name].copy_(tensor)
        if self._batch is not None:
            self._batch.forget()
        self.weight_version = update.version
        self._stats.weight_updates += 1

    def _decoder(self) -> Callable[[list[int]], str]:
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self.model)
        decode: Callable[[list[int]], str] = self._tokenizer.decode
        return decode

    # What follows runs in the decoding thread.

    def _serve(self) -> None:
        running: dict[Sequence, _Job] = {}
        try:
            while self._obey():
                self._admit(running)
                assert self._batch is not None
                if self._paused or not self._batch.sequences:
                    self._wake.wait()
                    self._wake.clear()
                    while self.options.gather_seconds and self._wake.wait(self.options.gather_seconds):
                        self._wake.clear()
                    continue
                self._stats.sampled_tokens += len(self._batch.sequences)
                for sequence in self._batch.step(self.weight_version):
                    _settle(running.pop(sequence).future, sequence.generation(), None)
        except BaseException as problem:  # handed over to everyone who waits
            self._failure = problem
        finally:
            self._end(running)

    def _obey(self) -> bool:
        """Run the commands that came in; False when the engine is to stop."""
        with self._work.lock:
            commands, self._work.commands = self._work.commands, []
            if self._work.stop:
                self._work.commands = commands
                return False
        for function, future in commands:
            try:
                function()
            except Exception as problem:  # handed over to the one who asked
                _settle(future, None, problem)
            else:
                _settle(future, None, None)
        return True

    def _admit(self, running: "dict[Sequence, _Job]") -> None:
        assert self._batch is not None
        with self._work.lock:
            cancelled, self._work.cancelled = self._work.cancelled, []
            waiting = [job for job in self._work.waiting if job not in cancelled]
            gone = [job.sequence for job in cancelled if running.pop(job.sequence, None) is not None]
            room = 0 if self._paused else self.options.max_batch - len(running)
            admitted, self._work.waiting = waiting[:room], waiting[room:]
        self._batch.drop(gone)
        for job in admitted:
            running[job.sequence] = job
            self._batch.sequences.append(job.sequence)

    def _end(self, running: "dict[Sequence, _Job]") -> None:
        with self._work.lock:
            self._work.ended = True
            waiting, self._work.waiting = self._work.waiting, []
            commands, self._work.commands = self._work.commands, []
        if self._batch is not None:
            self._batch.drop(list(running))
        fault = EngineFault(f"the transformers engine has stopped: {self._failure or 'it was closed'}")
        for job in [*running.values(), *waiting]:
            _settle(job.future, None, fault)
        for _, future in commands:
            _settle(future, None, fault)


def _tensors(update: WeightUpdate) -> Iterable[tuple[str, Any]]:
    if update.path is not None:
        return iterate_file(update.path)
    return (update.tensors or {}).items()


def _settle(future: "Future[Any]", value: Any, problem: BaseException | None) -> None:
    """Give a future its result, unless the one who waits has cancelled it."""
    if future.cancelled() or not future.set_running_or_notify_cancel():
        return
    if problem is None:
        future.set_result(value)
    else:
        future.set_exception(problem)
