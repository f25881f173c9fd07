"""An algorithm is a named combination of parts, and so a plugin (entry-point group `envhub.algorithms`)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from envhub import plugins
from envhub.errors import UserError, did_you_mean
from envhub.trainer import advantages, losses
from envhub.trainer.aggregation import AGGREGATIONS
from envhub.trainer.corrections import CORRECTIONS, Step
from envhub.trainer.kl import ESTIMATORS

# (rewards, groups, action tokens of each), all [rollouts], to advantages [rollouts].
Estimator: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What makes an algorithm.

    `estimator` maps (rewards, groups, lengths) to advantages [rollouts]. They stand at every action token, discounted by
    `gamma` a token from the end; with a `critic` they are the rewards of generalised advantage estimates with `lam`
    instead, and its loss is clipped by `value_clip` (None: not). With the `credit` of the `turn`, a turn's tokens get
    what is rewarded from that turn on, discounted by `turn_gamma` a turn. `whiten` then normalises advantages over the
    batch's action tokens. `needs_groups` says that a group of one learns nothing. `entropy_coef` times the entropy is
    taken from the loss. `loss` names the policy loss, whose bounds are `clip_low`, `clip_high` and `dual_clip`; it
    is averaged by `aggregation` (`length` is that of `constant_length`, in tokens). `kl_coef` times the `kl` estimate to
    the initial model is added to the loss, or, as k1, taken from the reward of its token (`kl_in`). `correction` weighs
    tokens by pi_old / mu, within `correction_low` and `correction_high` (None: its usual bounds).
    """

    name: str
    estimator: Estimator
    whiten: bool = False
    needs_groups: bool = True
    critic: bool = False
    gamma: float = 1.0
    lam: float = 1.0
    value_clip: float | None = 0.2
    credit: str = "episode"
    turn_gamma: float = 1.0
    entropy_coef: float = 0.0
    loss: str = "ppo"
    aggregation: str = "token_mean"
    length: int | None = None
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    kl: str = "k2"
    kl_coef: float = 0.0
    kl_in: str = "loss"
    correction: str = "tis"
    correction_low: float | None = None
    correction_high: float | None = None
    paper: str = ""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("loss", self.loss, LOSSES),
            ("aggregation", self.aggregation, AGGREGATIONS),
            ("kl", self.kl, ESTIMATORS),
            ("kl_in", self.kl_in, ("loss", "reward")),
            ("credit", self.credit, ("episode", "turn")),
            ("correction", self.correction, CORRECTIONS),
        ):
            if value not in known:
                hint = did_you_mean(value, known)
                raise UserError(f"algorithm {self.name!r}: {name} is one of {', '.join(known)}, not {value!r}{hint}")
        for name, number, most in (
            ("kl_coef", self.kl_coef, math.inf),
            ("entropy_coef", self.entropy_coef, math.inf),
            ("gamma", self.gamma, 1.0),
            ("lam", self.lam, 1.0),
            ("turn_gamma", self.turn_gamma, 1.0),
            ("value_clip", self.value_clip or 0.0, math.inf),
            ("clip_low", self.clip_low, 1.0),
            ("clip_high", self.clip_high, math.inf),
            ("dual_clip", self.dual_clip or 0.0, math.inf),
            ("correction_low", self.correction_low or 0.0, math.inf),
            ("correction_high", self.correction_high or 0.0, math.inf),
        ):
            if not (math.isfinite(number) and 0 <= number <= most):
                reach = "of at least 0" if math.isinf(most) else f"from 0 to {most:g}"
                raise UserError(f"algorithm {self.name!r}: {name} is a finite number {reach}, not {number}")
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise UserError(
                f"algorithm {self.name!r}: dual_clip is above 1 + clip_high = {1 + self.clip_high:g}, not {self.dual_clip}"
            )

        if self.turn_gamma != 1.0 and (self.credit != "turn" or self.critic):
            reason = (
                "a critic discounts by tokens: use gamma" if self.critic else "it discounts turns: set credit to turn"
            )
            raise UserError(f"algorithm {self.name!r}: turn_gamma is {self.turn_gamma}, but {reason}")
        self._check_correction()

    def _check_correction(self) -> None:
        usual = CORRECTIONS[self.correction]
        for name, given, bound in (
            ("correction_low", self.correction_low, usual.low),
            ("correction_high", self.correction_high, usual.high),
        ):
            if given is not None and bound is None:
                raise UserError(
                    f"algorithm {self.name!r}: the correction {self.correction!r} has no {name}; leave it out, or take "
                    "another correction"
                )
        low, high = self.correction_bounds
        if low > high:
            raise UserError(
                f"algorithm {self.name!r}: correction_low {low:g} is above correction_high {high:g}, so every token would "
                "be dropped"
            )

    @property
    def correction_bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the correction: those given, else its usual ones; 0 and infinity where it has none."""
        usual = CORRECTIONS[self.correction]
        low = usual.low if self.correction_low is None else self.correction_low
        high = usual.high if self.correction_high is None else self.correction_high
        return low or 0.0, math.inf if high is None else high

    def described(self) -> str:
        """What it is made of, in a line: the parts that it reads."""
        low, high = self.correction_bounds
        parts = [f"loss {self.loss}", *(f"{name} {getattr(self, name)}" for name in self.bounds if getattr(self, name))]
        parts += [f"aggregation {self.aggregation}", *(["advantages whitened"] if self.whiten else [])]
        if self.critic:
            parts += [f"critic, gamma {self.gamma:g}, lam {self.lam:g}, value_clip {self.value_clip}"]
        if self.credit == "turn":
            parts += [f"credit by turn, turn_gamma {self.turn_gamma:g}"]
        if self.kl_coef:
            parts += [f"kl_coef {self.kl_coef:g}, {'k1' if self.kl_in == 'reward' else self.kl} in the {self.kl_in}"]
        if self.entropy_coef:
            parts += [f"entropy_coef {self.entropy_coef:g}"]
        bounds = f" from {low:g} to {high:g}" if math.isfinite(high) else ""
        return f"{self.name}: {', '.join(parts)}, correction {self.correction}{bounds}"

    @property
    def bounds(self) -> tuple[str, ...]:
        """Those of `clip_low`, `clip_high` and `dual_clip` that the loss reads."""
        return LOSSES[self.loss].bounds

    @property
    def bypass(self) -> bool:
        """Whether the loss's pi_old is the engine's mu, so that its ratio itself corrects."""
        return CORRECTIONS[self.correction].bypass

    def with_options(self, **options: Any) -> "Algorithm":
        """The same algorithm with some parts replaced; options of None are skipped."""
        return replace(self, **{key: value for key, value in options.items() if value is not None})

    def token_losses(self, logprobs: Tensor, old: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """The policy loss of every token [rows, tokens], of advantages `values` of that shape."""
        return LOSSES[self.loss].of(self, logprobs, old, values, mask)

    def corrected(self, loss: Tensor, step: Step) -> Tensor:
        """The token losses [rows, tokens] times the weights of the correction, where it has any."""
        weigh = CORRECTIONS[self.correction].weigh
        return loss if weigh is None else loss * weigh(step, *self.correction_bounds)

    def clipped(self, logprobs: Tensor, old: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Where the loss's bounds bind, as 0 or 1 [rows, tokens]; GSPO's bind whole rows; SAPO and NLL have none."""
        low, high = self.clip_low, self.clip_high
        if not self.bounds:
            return torch.zeros_like(mask)
        if self.loss == "gspo":
            logprobs = losses.sequence_log_ratio(logprobs, old, mask).expand_as(mask)
            old = torch.zeros_like(logprobs)
        if self.loss == "gmpo":  # its bounds are in log space
            low, high = 1 - math.exp(-low), math.exp(high) - 1
        return losses.clipped(logprobs, old, values, low, high)

    def weights(self, mask: Tensor, owner: Tensor, groups: Tensor) -> Tensor:
        """What every token's loss counts [rows, tokens]; `owner` and `groups` [rows]."""
        return AGGREGATIONS[self.aggregation](mask, owner, groups, self.length)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss of (algorithm, log pi, log pi_old, advantages, mask), all [rows, tokens], and the bounds it reads."""

    of: Callable[[Algorithm, Tensor, Tensor, Tensor, Tensor], Tensor]
    bounds: tuple[str, ...] = ()


_CLIP = ("clip_low", "clip_high")

LOSSES: dict[str, PolicyLoss] = {
    "ppo": PolicyLoss(
        lambda a, new, old, values, mask: losses.ppo(new, old, values, a.clip_low, a.clip_high, a.dual_clip),
        losses.BOUNDS,
    ),
    "gspo": PolicyLoss(
        lambda a, new, old, values, mask: losses.gspo(new, old, values, mask, a.clip_low, a.clip_high), _CLIP
    ),
    "gmpo": PolicyLoss(
        lambda a, new, old, values, mask: losses.gmpo(new, old, values, mask, a.clip_low, a.clip_high), _CLIP
    ),
    "cispo": PolicyLoss(
        lambda a, new, old, values, mask: losses.cispo(new, old, values, a.clip_low, a.clip_high), _CLIP
    ),
    "sapo": PolicyLoss(lambda a, new, old, values, mask: losses.sapo(new, old, values)),
    "nll": PolicyLoss(lambda a, new, old, values, mask: -values * new),
}


def _of_groups(estimator: Callable[[Tensor, Tensor], Tensor]) -> Estimator:
    return lambda rewards, groups, lengths: estimator(rewards, groups)


def _as_it_is(rewards: Tensor, groups: Tensor, lengths: Tensor) -> Tensor:
    return rewards


_CENTRED, _GRPO = _of_groups(advantages.centred), _of_groups(advantages.grpo)
_BY_SEQUENCE = "sequence_mean_token_mean"

PPO = Algorithm(
    "ppo", _as_it_is, whiten=True, needs_groups=False, critic=True, kl_in="reward", paper="arXiv 1707.06347, 1506.02438"
)
REINFORCE = Algorithm(
    "reinforce", _as_it_is, whiten=True, needs_groups=False, kl_in="reward", paper="REINFORCE++, arXiv 2501.03262"
)
REINFORCE_BASELINE = Algorithm(
    "reinforce_baseline", _CENTRED, whiten=True, paper="REINFORCE++-baseline, arXiv 2501.03262"
)
GRPO = Algorithm("grpo", _GRPO, aggregation=_BY_SEQUENCE, kl="k3", paper="arXiv 2402.03300")
DR_GRPO = Algorithm("dr_grpo", _CENTRED, aggregation="constant_length", paper="arXiv 2503.20783")
RLOO = Algorithm("rloo", _of_groups(advantages.rloo), aggregation="sequence_mean_token_sum", paper="arXiv 2402.14740")
DAPO = Algorithm("dapo", _GRPO, clip_high=0.28, paper="arXiv 2503.14476")
GSPO = Algorithm(
    "gspo", _GRPO, loss="gspo", aggregation=_BY_SEQUENCE, clip_low=3e-4, clip_high=4e-4, paper="arXiv 2507.18071"
)
CISPO = Algorithm("cispo", _GRPO, loss="cispo", clip_low=1.0, clip_high=4.0, paper="arXiv 2506.13585")
GMPO = Algorithm(
    "gmpo", _GRPO, loss="gmpo", aggregation=_BY_SEQUENCE, clip_low=0.4, clip_high=0.4, paper="arXiv 2507.20673"
)
SAPO = Algorithm("sapo", _GRPO, loss="sapo", aggregation=_BY_SEQUENCE, paper="arXiv 2511.20347")
OPO = Algorithm("opo", advantages.opo, paper="arXiv 2505.23585")
SFT = Algorithm("sft", _as_it_is, needs_groups=False, loss="nll", correction="none")


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of a name, bundled or published by a plugin. Raises UserError for an unknown one."""
    found = plugins.load(plugins.ALGORITHMS, name)
    if not isinstance(found, Algorithm):
        raise UserError(f"algorithm {name!r} is no envhub Algorithm but {type(found).__name__}; repair its package")
    return found
