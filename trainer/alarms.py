"""What tells that training goes wrong before the curve does: engine and trainer disagree, or nothing moves."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping

import torch

from envhub.agents.engines import Engine, Generation, Request, SamplingParams
from envhub.errors import EngineFault, UserError
from envhub.trainer.algorithms import Algorithm
from envhub.trainer.batch import Rows
from envhub.trainer.strategy import Strategy

IN_A_ROW = 3
"""Steps without a rollout, or updates that are not finite, after which a run stops."""

_SECONDS = 300.0
_SAMPLED = 8
_FLOOR = 0.02  # in nats: what float32 and a few layers of another kernel never reach
_FACTOR = 10.0
_ANSWERS = 3


class Canary:
    """A prompt that the engine answers after every transfer of weights, and the trainer scores.

    Their logprobs agree, up to precision, where both have the same weights. How well they agree is measured when the
    engine has just been started with the trainer's weights, so that no tolerance depends on the precision of either. The
    prompt is long enough to be kept in an engine's prefix cache, which must not survive a transfer.
    """

    def __init__(self, engine: Engine, strategy: Strategy, prompt: list[int], temperature: float) -> None:
        """`prompt` is token ids; `temperature` that of the rollouts."""
        room = None if engine.max_context is None else max(1, engine.max_context - _SAMPLED)
        self._engine, self._strategy, self._prompt, self._temperature = engine, strategy, prompt[:room], temperature
        self._numbers = itertools.count()
        self.usual: float | None = None
        self.doubted = 0

    async def difference(self) -> float:
        """The largest distance in nats between the engine's logprob of a sampled token and the trainer's."""
        sampling = SamplingParams(temperature=self._temperature, ignore_eos=True, min_tokens=_SAMPLED)
        request = Request(f"canary-{next(self._numbers)}", self._prompt, _SAMPLED, sampling)
        try:
            generation = await asyncio.wait_for(self._engine.generate(request), _SECONDS)
        except TimeoutError:
            raise EngineFault(
                f"engine {self._engine.name!r} did not answer the canary prompt in {_SECONDS:g} s"
            ) from None
        rows = rows_of(self._prompt, generation)
        scored = await asyncio.to_thread(self._strategy.score, rows, self._temperature)
        return float(((scored - rows.behaviour) * rows.mask).abs().max())

    async def check(self, version: int) -> float:
        """Measure it after the transfer of a version; the first of some answers that agree counts.

        An engine without the weights disagrees each time, while kernels of an overloaded machine have been seen to give one
        wrong answer; `doubted` counts those. Raises EngineFault where the engine has not these weights.
        """
        answers: list[float] = []
        while len(answers) < _ANSWERS:
            answers.append(await self.difference())
            if self.usual is None:
                self.usual = answers[0]
            if answers[-1] <= _FACTOR * self.usual + _FLOOR:
                self.doubted += len(answers) - 1
                return answers[-1]
        raise EngineFault(
            f"engine {self._engine.name!r} has not the weights of version {version}: its logprobs of a canary prompt "
            f"differ from the trainer's by {min(answers):.3g} nats, {self.usual:.3g} when it was started; the transfer did "
            "not reach it, or it answers from a cache of the old weights"
        )


def rows_of(prompt: list[int], generation: Generation) -> Rows:
    """One row of a prompt and what was sampled after it, for scoring."""
    ids = torch.tensor([[*prompt, *generation.token_ids]])
    mask, behaviour = torch.zeros(ids.shape), torch.zeros(ids.shape)
    mask[0, len(prompt) :] = 1
    behaviour[0, len(prompt) :] = torch.tensor(generation.logprobs)
    return Rows.bare(ids, mask, behaviour, torch.tensor([ids.shape[1]]))


def mismatch(values: Mapping[str, float], *, truncated: bool = False) -> str:
    """What a step's metrics say about engine and trainer: an empty string, or the disagreement and its likely cause.

    With w = pi_old / mu, the mean of w over what mu sampled is 1 whenever both have the same support, however much they
    differ: a mean below 1 tells that the engine cannot sample what the trainer gives weight to. `truncated` says that the run
    itself samples so (top-p, top-k): then w is at most 1 for every token, and only a mean above it tells anything.
    """
    if not {"mismatch_k3", "importance", "max_mismatch"} <= values.keys():
        return ""
    k3, mean, most = values["mismatch_k3"], values["importance"], values["max_mismatch"]
    size = values.get("effective_sample_size", 1.0)
    said = f"KL {k3:.3g} nats a token, mean ratio {mean:.3f}, effective sample size {size:.2f}, at most {most:.3g} nats"
    if truncated and mean <= 1.1:
        return ""
    if mean < 0.9:
        cause = "the engine samples from less than the whole vocabulary (top-p, top-k) or at another temperature"
    elif mean > 1.1:
        cause = "the logprobs are of other tokens than those that were sampled: look at the engine's wiring"
    elif k3 > 0.05 or size < 0.5:
        cause = "the engine has old weights, answers from a cache of them, or computes in a much lower precision"
    elif most > 3.0 and k3 > 0.005:
        cause = "single tokens are read differently: look at the chat template and the special tokens"
    else:
        return ""
    return f"engine and trainer disagree about what was sampled ({said}): {cause}"


def fingerprint(strategy: Strategy) -> list[tuple[float, float]]:
    """Sum and sum of squares of every parameter that training changes, in float64."""
    tensors = strategy.named_tensors(whole=False).values()
    return [(float(t.double().sum()), float(t.double().square().sum())) for t in tensors]


def refuse_unmoved(before: list[tuple[float, float]], strategy: Strategy, gradient: float) -> None:
    """Raise UserError where a step with a gradient left every parameter as it was."""
    if gradient > 0 and fingerprint(strategy) == before:
        raise UserError(
            f"the first update moved no parameter, although its gradient has the norm {gradient:.3g}: the learning rate is "
            "too small for the precision of the weights; raise --learning-rate"
        )


def weights(algorithm: Algorithm) -> str:
    """The other settings that may make an update infinite, as the end of a remedy."""
    names = [name for name in ("kl_coef", "entropy_coef") if getattr(algorithm, name) > 1]
    return "".join(f" or {name}" for name in names)


def count_skipped(
    before: int,
    step: int,
    reasons: Iterable[str],
    warn: Callable[[str], object],
    *,
    kept: str = "",
    others: str = "",
) -> int:
    """How many updates in a row were not finite, after `before` of them and the updates of `step`.

    `reasons` says why each was skipped, and is empty for one that was made; `warn` is given a line for each that was not,
    with the `kept` file of its rollouts. Raises UserError for the third in a row, whose remedies may be `others` too.
    """
    count = before
    for reason in reasons:
        count = count + 1 if reason else 0
        if reason:
            warn(f"step {step}: the update was skipped: {reason}{kept and f'; its rollouts are in {kept}'}")
        if count >= IN_A_ROW:
            look = ", or look at the rollouts of the last steps" if kept else ""
            raise UserError(
                f"{IN_A_ROW} updates in a row were not finite ({reason}); lower --learning-rate{others}{look}"
            )
    return count
