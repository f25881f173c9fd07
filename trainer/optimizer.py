"""How parameters are updated: optimizer, schedule, clipped gradients, and the refusal of what is not finite."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor
from torch.optim import Optimizer

from envhub.errors import UserError
from envhub.trainer.lora import Lora

_MOMENTS = {"AdamW": ("exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}


@dataclass(frozen=True, slots=True)
class Optimization:
    """Which parameters are updated (all, or with `lora` an adapter's), and how.

    `precision` is `auto`, `float32` or `bfloat16` (autocast; parameters stay float32).
    `optimizer` is `adamw`, or `muon` for the matrices of the layers with AdamW for all else. `schedule` is one of
    transformers' (`constant`, `linear`, `cosine`, …) over `total_steps` optimizer steps after `warmup_steps`.
    """

    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    micro_tokens: int = 4096
    precision: str = "auto"
    gradient_checkpointing: bool = False
    optimizer: str = "adamw"
    schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    lora: Lora | None = None

    @classmethod
    def of(cls, settings: BaseModel, total_steps: int) -> "Optimization":
        """What the configuration of a run says of it, for a run of so many optimizer steps."""
        named = {field.name: getattr(settings, field.name) for field in fields(cls) if hasattr(settings, field.name)}
        return cls(**named, total_steps=total_steps, lora=Lora.of(settings))

    def __post_init__(self) -> None:
        if self.total_steps and self.warmup_steps >= self.total_steps:
            raise UserError(
                f"the warm-up of {self.warmup_steps} optimizer steps is as long as the whole schedule of "
                f"{self.total_steps}; lower warmup_steps"
            )


class Stepper:
    """The optimizer of one model's parameters that are trained. Raises UserError for a model that has none."""

    def __init__(self, model: torch.nn.Module, options: Optimization) -> None:
        self.options = options
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise UserError("the model has no parameters to train: all are frozen")
        self.optimizers = _optimizers(model, options)
        self._factor = _schedule(options)
        self._made = 0
        self._set_rate()

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return self.options.learning_rate * self._factor(self._made + 1)  # the first step is no step of rate 0

    def _set_rate(self) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate

    def zero(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def take(self, loss: float) -> tuple[float, str]:
        """Take the step of the gradients that there are, and forget them.

        Returns the gradient's norm before clipping, and why no step was taken (empty when it was): a loss or a gradient
        that is not finite changes nothing.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.options.clip_norm or math.inf))
        skipped = "" if math.isfinite(norm) and math.isfinite(loss) else f"loss {loss} with gradient norm {norm}"
        if not skipped:
            for optimizer in self.optimizers:
                optimizer.step()
        self.zero()
        self._made += 1
        self._set_rate()
        return norm, skipped

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the moments of every optimizer, and how many steps the schedule has made."""
        return {
            "optimizers": [optimizer.state_dict()["state"] for optimizer in self.optimizers],
            "schedule": self._made,
        }

    def load_state(self, saved: Any) -> None:
        """Take up a saved state. The hyperparameters stay those of the options. Raises ValueError where it does not fit."""
        states = saved.get("optimizers") if isinstance(saved, dict) else None
        made = saved.get("schedule") if isinstance(saved, dict) else None
        if not isinstance(states, list) or len(states) != len(self.optimizers):
            raise ValueError(f"optimizer: it has no moments of {len(self.optimizers)} optimizers")
        if not isinstance(made, int) or isinstance(made, bool) or made < 0:
            raise ValueError(f"optimizer: schedule is a number of steps, not {made!r}")
        checked = [_checked(optimizer, state) for optimizer, state in zip(self.optimizers, states, strict=True)]
        for optimizer, state in zip(self.optimizers, checked, strict=True):
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        self._made = made
        self._set_rate()


def described(model: torch.nn.Module) -> str:
    """The parameters that are trained, in words: how many values and tensors, and a digest of names and shapes."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    lines = sorted(f"{name} {tuple(parameter.shape)}" for name, parameter in named)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    return f"{sum(parameter.numel() for _, parameter in named)} values in {len(named)} tensors ({digest})"


def _optimizers(model: torch.nn.Module, options: Optimization) -> list[Optimizer]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    muon = []
    if options.optimizer == "muon":
        tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        muon = [p for name, p in named if p.dim() == 2 and id(p) not in tables and "head" not in name]
    taken = {id(p) for p in muon}
    rest = [p for _, p in named if id(p) not in taken]
    out: list[Optimizer] = []
    if muon:
        out.append(
            torch.optim.Muon(
                muon, lr=options.learning_rate, weight_decay=options.weight_decay, adjust_lr_fn="match_rms_adamw"
            )
        )
    if rest:
        decayed, plain = [p for p in rest if p.dim() >= 2], [p for p in rest if p.dim() < 2]
        groups = [
            {"params": decayed, "weight_decay": options.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        out.append(torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, fused=True))
    return out


def _schedule(options: Optimization) -> Callable[[int], float]:
    """The factor of the learning rate at each optimizer step, counted from 1."""
    from transformers import get_scheduler

    name = "constant_with_warmup" if options.schedule == "constant" and options.warmup_steps else options.schedule
    bearer = torch.optim.SGD([torch.zeros(1)], lr=1.0)  # of the schedule, whose rates are applied by the stepper
    total = options.total_steps + 1 if options.total_steps else None
    try:
        factor: Callable[[int], float] = get_scheduler(name, bearer, options.warmup_steps, total).lr_lambdas[0]
    except (ValueError, AttributeError) as problem:
        raise UserError(f"the schedule {options.schedule!r} cannot be used: {problem}") from problem
    return factor


def _checked(optimizer: Optimizer, state: Any) -> dict[int, dict[str, Tensor]]:
    """An optimizer's state by a parameter's number. Raises ValueError where it does not fit the parameters."""
    shapes = [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]
    moments: Sequence[str] = _MOMENTS[type(optimizer).__name__]
    if not isinstance(state, dict):
        raise ValueError("optimizer: its state is no dict")
    for number, values in state.items():
        if not isinstance(number, int) or not 0 <= number < len(shapes):
            raise ValueError(f"optimizer: no parameter {number!r}; the model has {len(shapes)}")
        expected = dict.fromkeys(moments, shapes[number])
        if isinstance(optimizer, torch.optim.AdamW):
            expected["step"] = torch.Size()
        if not isinstance(values, dict) or values.keys() != expected.keys():
            raise ValueError(f"optimizer: parameter {number} has not {', '.join(expected)}")
        for name, shape in expected.items():
            value = values[name]
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape != shape:
                raise ValueError(f"optimizer: {name} of parameter {number} is no tensor of shape {tuple(shape)}")
            if not bool(value.isfinite().all()):
                raise ValueError(f"optimizer: {name} of parameter {number} is not finite")
    return state
