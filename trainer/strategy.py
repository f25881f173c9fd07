"""A strategy runs the model: logprobs, optimizer steps, state. One process here; others keep the same contract."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envhub.agents.engines.precision import choose_device, fast_dtype
from envhub.trainer import corrections
from envhub.trainer.algorithms import CORRECTIONS, Algorithm
from envhub.trainer.batch import Rows, micro_batches
from envhub.trainer.kl import ESTIMATORS
from envhub.trainer.model import TokenScorer, load_model


@dataclass(frozen=True, slots=True)
class Optimization:
    """How parameters are updated. `precision` is `auto`, `float32` or `bfloat16` (autocast; parameters stay float32)."""

    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    micro_tokens: int = 4096
    precision: str = "auto"
    gradient_checkpointing: bool = False


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step: the metrics, and whether it was taken (`skipped` says why it was not)."""

    metrics: dict[str, float]
    skipped: str = ""


class Strategy(ABC):
    """Holds the policy, its optimizer and, where the algorithm needs one, the reference."""

    @abstractmethod
    def score(self, rows: Rows, temperature: float, *, reference: bool = False) -> Tensor:
        """Logprobs [rows, tokens] of the action tokens under the policy or the reference, without gradient."""

    @abstractmethod
    def step(
        self, rows: Rows, algorithm: Algorithm, temperature: float, old: Tensor | None, ref: Tensor | None
    ) -> StepReport:
        """One optimizer step on rows. `old` None says that the policy is the one at the start of the step."""

    @abstractmethod
    def named_tensors(self) -> Mapping[str, Tensor]:
        """The policy's parameters by their checkpoint names, for an engine."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Optimizer and random-generator state for a checkpoint."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Take up a saved state. Raises ValueError for one that is not of this model."""


class TorchStrategy(Strategy):
    """The whole model in this process, on one device."""

    def __init__(
        self, model: Path, options: Optimization, *, reference: Path | None = None, device: str = "auto"
    ) -> None:
        device = choose_device(device)
        self.device, self.options = torch.device(device), options
        self.model = load_model(model, device, gradient_checkpointing=options.gradient_checkpointing)
        self.model.train()
        self._scorer = TokenScorer(self.model)
        self._reference = None
        if reference is not None:
            frozen = load_model(reference, device).eval().requires_grad_(False)
            self._reference = TokenScorer(frozen)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        decayed = [p for p in self._parameters if p.dim() >= 2]
        plain = [p for p in self._parameters if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": options.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=options.learning_rate,
            betas=options.betas,
        )
        name = options.precision
        if name == "auto":  # float16 would need its gradients scaled
            fast = fast_dtype(self.device.type)
            name = "bfloat16" if fast == "bfloat16" else "float32"
        self._autocast = None if name == "float32" else torch.bfloat16

    def _mixed(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast)

    def _forward(self, scorer: TokenScorer, rows: Rows, temperature: float) -> tuple[Tensor, Tensor]:
        with self._mixed():
            return scorer(
                rows.token_ids.to(self.device), rows.lengths.to(self.device), rows.mask.to(self.device), temperature
            )

    @torch.no_grad()
    def score(self, rows: Rows, temperature: float, *, reference: bool = False) -> Tensor:
        scorer = self._reference if reference else self._scorer
        if scorer is None:
            raise ValueError("this strategy holds no reference")
        out = torch.zeros(rows.token_ids.shape)
        for part in micro_batches(rows.numbered(), self.options.micro_tokens):
            logprobs, _ = self._forward(scorer, part, temperature)
            out[part.owner, : logprobs.shape[1]] = logprobs.cpu()
        return out

    def step(
        self, rows: Rows, algorithm: Algorithm, temperature: float, old: Tensor | None, ref: Tensor | None
    ) -> StepReport:
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        for part in micro_batches(rows.numbered(), self.options.micro_tokens):
            width = part.token_ids.shape[1]
            pick = [None if full is None else full[part.owner, :width].to(self.device) for full in (old, ref)]
            logprobs, entropy = self._forward(self._scorer, part, temperature)
            self._part(part, algorithm, logprobs, entropy, pick[0], pick[1], sums)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.options.clip_norm or math.inf))
        tokens = max(1.0, sums.pop("tokens"))
        loss = sums.pop("loss")
        metrics = {name: value / tokens for name, value in sums.items() if not name.startswith("max_")}
        metrics |= {name: value for name, value in sums.items() if name.startswith("max_")}
        metrics |= {"loss": loss, "gradient_norm": norm, "action_tokens": tokens}
        if not (math.isfinite(norm) and math.isfinite(loss)):
            self.optimizer.zero_grad(set_to_none=True)
            return StepReport(metrics, f"loss {loss} with gradient norm {norm}")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepReport(metrics)

    def _part(
        self, part: Rows, algorithm: Algorithm, logprobs: Tensor, entropy: Tensor,
        old: Tensor | None, ref: Tensor | None, sums: dict[str, float],
    ) -> None:  # fmt: skip
        """Loss and gradient of one micro-batch; adds its metrics, summed over tokens, to `sums`."""
        mask, behaviour = part.mask.to(self.device), part.behaviour.to(self.device)
        values, weights = part.advantages.to(self.device), part.weights.to(self.device)
        anchor = logprobs.detach() if old is None else old
        token_loss = algorithm.token_losses(logprobs, anchor, values, mask)
        importance = corrections.importance(anchor, behaviour)
        correct = CORRECTIONS[algorithm.correction]
        if correct is not None:
            token_loss = token_loss * correct(anchor, behaviour, mask)
        if ref is not None and algorithm.kl_coef and algorithm.kl_in == "loss":
            divergence = ESTIMATORS[algorithm.kl](logprobs, ref)
            token_loss = token_loss + algorithm.kl_coef * divergence
            _add(sums, "kl", (divergence.detach() * mask).sum())
        loss = (token_loss * weights).sum()
        torch.autograd.backward(loss)
        difference = ((anchor - behaviour) * mask).detach()
        _add(sums, "loss", loss.detach())
        _add(sums, "tokens", mask.sum())
        _add(sums, "entropy", (entropy * mask).sum())
        _add(
            sums,
            "clipped",
            (algorithm.clipped(logprobs, anchor, values, mask) * mask).sum(),
        )
        _add(sums, "mismatch_k3", ((difference.exp() - difference - 1) * mask).sum())
        _add(sums, "importance", (importance * mask).sum())
        sums["max_mismatch"] = max(sums.get("max_mismatch", 0.0), float(difference.abs().max()))

    def named_tensors(self) -> Mapping[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def save_model(self, folder: Path) -> None:
        self.model.save_pretrained(folder)

    def state(self) -> dict[str, Any]:
        out = {"optimizer": self.optimizer.state_dict(), "torch_rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            out["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        return out

    def load_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or not {"optimizer", "torch_rng"} <= state.keys():
            raise ValueError("it holds no optimizer and random generator")
        # The hyperparameters are those of the run's configuration, which a resumed run keeps.
        own = self.optimizer.state_dict()["param_groups"]
        shapes = [parameter.shape for group in self.optimizer.param_groups for parameter in group["params"]]
        moments = _checked_moments(state["optimizer"], shapes)
        try:
            torch.set_rng_state(state["torch_rng"])
            if "cuda_rng" in state and self.device.type == "cuda":
                torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        except (RuntimeError, TypeError, AttributeError) as problem:
            raise ValueError(f"random generator: {problem}") from problem
        self.optimizer.load_state_dict({"state": moments, "param_groups": own})


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _checked_moments(saved: Any, shapes: Sequence[torch.Size]) -> dict[int, dict[str, Tensor]]:
    """AdamW's state by a parameter's number. Raises ValueError where it does not fit parameters of these shapes."""
    groups = saved.get("param_groups") if isinstance(saved, dict) else None
    state = saved.get("state") if isinstance(saved, dict) else None
    if not isinstance(groups, list) or not isinstance(state, dict):
        raise ValueError("optimizer: it has no state and param_groups")
    for number, values in state.items():
        if not isinstance(number, int) or not 0 <= number < len(shapes):
            raise ValueError(f"optimizer: no parameter {number!r}; the model has {len(shapes)}")
        expected = {"step": torch.Size(), **dict.fromkeys(_MOMENTS, shapes[number])}
        if not isinstance(values, dict) or values.keys() != expected.keys():
            raise ValueError(f"optimizer: parameter {number} has not {', '.join(expected)}")
        for name, shape in expected.items():
            value = values[name]
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape != shape:
                raise ValueError(f"optimizer: {name} of parameter {number} is no tensor of shape {tuple(shape)}")
            if not bool(value.isfinite().all()):
                raise ValueError(f"optimizer: {name} of parameter {number} is not finite")
    return state


def _add(sums: dict[str, float], name: str, value: Tensor) -> None:
    sums[name] = sums.get(name, 0.0) + float(value)
