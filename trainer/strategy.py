"""A strategy runs the model: logprobs, optimizer steps, state. One process here; others keep the same contract."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envhub.trainer import corrections
from envhub.trainer.algorithms import Algorithm
from envhub.trainer.arithmetic import Arithmetic
from envhub.trainer.batch import Rows
from envhub.trainer.critic import Critic
from envhub.trainer.decoder import Prefix, passes
from envhub.trainer.kl import ESTIMATORS, k3
from envhub.trainer.lora import Adapter
from envhub.trainer.model import TokenScorer, load_model
from envhub.trainer.optimizer import Optimization, Stepper, described

MISMATCH = ("mismatch_k3", "importance", "effective_sample_size", "max_mismatch")  # the engine, against pi_old


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step: the metrics, and whether it was taken (`skipped` says why it was not)."""

    metrics: dict[str, float]
    skipped: str = ""

    def without_mismatch(self) -> "StepReport":
        """The same without the comparison of engine and trainer: the policy was no longer the one that sampled."""
        return StepReport({k: v for k, v in self.metrics.items() if k not in MISMATCH}, self.skipped)


class Strategy(ABC):
    """Holds the policy, its optimizer and, where the algorithm needs them, the reference and the critic."""

    @abstractmethod
    def score(self, rows: Rows, temperature: float, *, reference: bool = False) -> Tensor:
        """Logprobs [rows, tokens] of the action tokens under the policy or the reference, without gradient."""

    @abstractmethod
    def values(self, rows: Rows) -> Tensor:
        """The critic's values [rows, tokens] before each action token, without gradient."""

    @abstractmethod
    def step_critic(self, rows: Rows, algorithm: Algorithm) -> StepReport:
        """One optimizer step of the critic towards the rows' returns."""

    @abstractmethod
    def refresh_reference(self) -> None:
        """Let the reference be the policy as it is now."""

    @abstractmethod
    def step(
        self, rows: Rows, algorithm: Algorithm, temperature: float, old: Tensor | None, ref: Tensor | None
    ) -> StepReport:
        """One optimizer step on rows. `old` None says that the policy is the one at the start of the step.

        With the correction `bypass` no `old` is needed: what is measured against the engine is then of the policy as it is.
        """

    @abstractmethod
    def named_tensors(self, *, whole: bool = True) -> Mapping[str, Tensor]:
        """The policy's parameters by their checkpoint names, for an engine; without `whole`, those that training changes."""

    @abstractmethod
    def trained(self) -> str:
        """The parameters that are trained, in words: how many, and a digest of their names and shapes."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout, or its adapter in that of PEFT."""

    def load_adapter(self, folder: Path) -> None:  # noqa: B027 - a policy that is trained whole has none
        """Take up the adapter that `save_model` wrote. A whole policy is read when the strategy is made.

        Raises ValueError where it does not fit, UserError where it was trained beside another model.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """For a checkpoint: optimizers, random generators, the critic, and a reference that was refreshed."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Take up a saved state. Raises ValueError for one that is not of this model."""


class TorchStrategy(Strategy):
    """The whole model in this process, on one device; with `options.lora`, an adapter of it is trained."""

    def __init__(
        self,
        model: Path,
        options: Optimization,
        *,
        reference: Path | None = None,
        critic: Optimization | None = None,
        device: str = "auto",
    ) -> None:
        """`reference` is the folder of a model to compare with; `critic` says how one is trained, None that there is none.

        With an adapter the reference of the same folder is the model itself without it, and no second one is held.
        """
        self.options, self.arithmetic = options, Arithmetic(device, options.precision)
        self.device = self.arithmetic.device
        self.model = load_model(model, str(self.device), gradient_checkpointing=options.gradient_checkpointing)
        self.adapter = None if options.lora is None else Adapter(self.model, options.lora, model)
        self.model.train()
        self._scorer = TokenScorer(self.model)
        self._reference = None
        self._refreshed = False
        self._bare = self.adapter if reference == model else None  # without which the model is the reference
        if self._bare is not None:
            self._reference = self._scorer
        elif reference is not None:
            frozen = load_model(reference, str(self.device)).eval().requires_grad_(False)
            self._reference = TokenScorer(frozen)
        self.stepper = Stepper(self.model, options)
        self.critic = None if critic is None else Critic(model, critic, self.arithmetic)

    def _forward(
        self, scorer: TokenScorer, rows: Rows, temperature: float, prefix: Prefix | None, trains_entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        ids, lengths, mask = (tensor.to(self.device) for tensor in (rows.token_ids, rows.lengths, rows.mask))
        with self.arithmetic.mixed():
            return scorer(ids, lengths, mask, temperature, prefix=prefix, trains_entropy=trains_entropy)

    @torch.no_grad()
    def score(self, rows: Rows, temperature: float, *, reference: bool = False) -> Tensor:
        scorer = self._reference if reference else self._scorer
        if scorer is None:
            raise ValueError("this strategy holds no reference")
        out = torch.zeros(rows.token_ids.shape)
        without = self._bare.reference if reference and self._bare is not None else contextlib.nullcontext
        with without():
            for part, prefix in passes(scorer.decoder, rows.numbered(), self.options.micro_tokens, self.arithmetic):
                logprobs, _ = self._forward(scorer, part, temperature, prefix)
                out[part.owner, : logprobs.shape[1]] = logprobs.cpu()
        return out

    def values(self, rows: Rows) -> Tensor:
        return self._critic().values(rows)

    def step_critic(self, rows: Rows, algorithm: Algorithm) -> StepReport:
        return StepReport(*self._critic().step(rows, algorithm.value_clip))

    def _critic(self) -> Critic:
        if self.critic is None:
            raise ValueError("this strategy holds no critic")
        return self.critic

    def refresh_reference(self) -> None:
        if self._reference is None:
            raise ValueError("this strategy holds no reference")
        if self._bare is not None:
            self._bare.keep_reference()
        else:
            self._reference.model.load_state_dict(self.named_tensors())
        self._refreshed = True

    def step(
        self, rows: Rows, algorithm: Algorithm, temperature: float, old: Tensor | None, ref: Tensor | None
    ) -> StepReport:
        self.stepper.zero()
        sums: dict[str, float] = {}
        rate = self.stepper.learning_rate
        for part, prefix in passes(self._scorer.decoder, rows.numbered(), self.options.micro_tokens, self.arithmetic):
            width = part.token_ids.shape[1]
            pick = [None if full is None else full[part.owner, :width].to(self.device) for full in (old, ref)]
            logprobs, entropy = self._forward(self._scorer, part, temperature, prefix, algorithm.entropy_coef != 0)
            self._part(part, algorithm, logprobs, entropy, pick[0], pick[1], sums)
            del logprobs, entropy  # and their graph
            self.arithmetic.give_back()
        tokens = max(1.0, sums.pop("tokens"))
        loss = sums.pop("loss")
        norm, skipped = self.stepper.take(loss)
        metrics = {name: value / tokens for name, value in sums.items() if not name.startswith("max_")}
        metrics |= {name: value for name, value in sums.items() if name.startswith("max_")}
        squares = metrics.pop("importance_squared")
        metrics["effective_sample_size"] = corrections.effective_share(metrics["importance"], squares, 1)
        metrics |= {"loss": loss, "gradient_norm": norm, "action_tokens": tokens, "learning_rate": rate}
        return StepReport(metrics, skipped)

    def _part(
        self, part: Rows, algorithm: Algorithm, logprobs: Tensor, entropy: Tensor,
        old: Tensor | None, ref: Tensor | None, sums: dict[str, float],
    ) -> None:  # fmt: skip
        """Loss and gradient of one micro-batch; adds its metrics, summed over tokens, to `sums`."""
        mask, behaviour = part.mask.to(self.device), part.behaviour.to(self.device)
        values, weights = part.advantages.to(self.device), part.weights.to(self.device)
        own = logprobs.detach() if old is None else old
        anchor = behaviour if algorithm.bypass else own
        token_loss = algorithm.token_losses(logprobs, anchor, values, mask)
        importance = corrections.importance(own, behaviour)
        token_loss = algorithm.corrected(token_loss, corrections.Step(logprobs, own, behaviour, values, mask))
        if ref is not None and algorithm.kl_coef and algorithm.kl_in == "loss":
            divergence = ESTIMATORS[algorithm.kl](logprobs, ref)
            token_loss = token_loss + algorithm.kl_coef * divergence
            _add(sums, "kl", (divergence.detach() * mask).sum())
        if algorithm.entropy_coef:
            token_loss = token_loss - algorithm.entropy_coef * entropy
        loss = (token_loss * weights).sum()
        torch.autograd.backward(loss)
        difference = ((own - behaviour) * mask).detach()
        _add(sums, "loss", loss.detach())
        _add(sums, "tokens", mask.sum())
        _add(sums, "entropy", (entropy.detach() * mask).sum())
        _add(
            sums,
            "clipped",
            (algorithm.clipped(logprobs, anchor, values, mask) * mask).sum(),
        )
        _add(sums, "mismatch_k3", (k3(behaviour, own).detach() * mask).sum())
        _add(sums, "importance", (importance * mask).sum())
        _add(sums, "importance_squared", (importance**2 * mask).sum())
        sums["max_mismatch"] = max(sums.get("max_mismatch", 0.0), float(difference.abs().max()))

    def named_tensors(self, *, whole: bool = True) -> Mapping[str, Tensor]:
        if self.adapter is not None:
            return self.adapter.merged(whole=whole)
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def trained(self) -> str:
        return described(self.model)

    def save_model(self, folder: Path) -> None:
        if self.adapter is not None:
            self.adapter.save(folder)
        else:
            self.model.save_pretrained(folder)

    def load_adapter(self, folder: Path) -> None:
        if self.adapter is not None:
            self.adapter.load(folder)

    def state(self) -> dict[str, Any]:
        out = {"stepper": self.stepper.state(), "torch_rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            out["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        if self.critic is not None:
            out["critic"] = self.critic.state()
        if self._refreshed and self._reference is not None:
            kept = None if self._bare is None else self._bare.kept
            out["reference"] = self._reference.model.state_dict() if kept is None else kept
        return out

    def load_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or not {"stepper", "torch_rng"} <= state.keys():
            raise ValueError("it holds no optimizer and random generator")
        if (self.critic is None) != ("critic" not in state):
            raise ValueError("it holds no critic, which the algorithm needs" if self.critic else "it holds a critic")
        try:
            torch.set_rng_state(state["torch_rng"])
            if "cuda_rng" in state and self.device.type == "cuda":
                torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        except (RuntimeError, TypeError, AttributeError) as problem:
            raise ValueError(f"random generator: {problem}") from problem
        self.stepper.load_state(state["stepper"])
        if self.critic is not None:
            self.critic.load_state(state["critic"])
        if "reference" in state and self._reference is not None:
            try:
                if self._bare is not None:
                    self._bare.keep_reference(state["reference"])
                else:
                    self._reference.model.load_state_dict(state["reference"])
            except (RuntimeError, TypeError, AttributeError) as problem:
                raise ValueError(f"reference: {problem}") from problem
            self._refreshed = True


def _add(sums: dict[str, float], name: str, value: Tensor) -> None:
    sums[name] = sums.get(name, 0.0) + float(value)
