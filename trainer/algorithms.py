"""An algorithm is a named combination of parts, and so a plugin (entry-point group `envhub.algorithms`)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from envhub import plugins
from envhub.errors import UserError, did_you_mean
from envhub.trainer import advantages, corrections
from envhub.trainer.aggregation import AGGREGATIONS
from envhub.trainer.kl import ESTIMATORS

CORRECTIONS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "none": None,
    "tis": corrections.truncated,
    "icepop": corrections.icepop,
}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What makes an algorithm.

    `estimator` maps (rewards, groups) to advantages [rollouts]; `whiten` then normalises them over the batch's action
    tokens. `needs_groups` says that a group of one learns nothing. The loss is PPO's clipped one with `clip_low`,
    `clip_high` and `dual_clip`, averaged by `aggregation`, plus `kl_coef` times the `kl` estimate to the initial model.
    `correction` weighs tokens by pi_old / mu.
    """

    name: str
    estimator: Callable[[Tensor, Tensor], Tensor]
    whiten: bool = False
    needs_groups: bool = True
    aggregation: str = "token_mean"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    kl: str = "k2"
    kl_coef: float = 0.0
    correction: str = "tis"
    paper: str = ""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("aggregation", self.aggregation, AGGREGATIONS),
            ("kl", self.kl, ESTIMATORS),
            ("correction", self.correction, CORRECTIONS),
        ):
            if value not in known:
                hint = did_you_mean(value, known)
                raise UserError(f"algorithm {self.name!r}: {name} is one of {', '.join(known)}, not {value!r}{hint}")
        for name, number, most in (
            ("kl_coef", self.kl_coef, math.inf),
            ("clip_low", self.clip_low, 1.0),
            ("clip_high", self.clip_high, math.inf),
            ("dual_clip", self.dual_clip or 0.0, math.inf),
        ):
            if not (math.isfinite(number) and 0 <= number <= most):
                reach = "of at least 0" if math.isinf(most) else f"from 0 to {most:g}"
                raise UserError(f"algorithm {self.name!r}: {name} is a finite number {reach}, not {number}")

    def with_options(self, **options: Any) -> "Algorithm":
        """The same algorithm with some parts replaced; options of None are skipped."""
        return replace(self, **{key: value for key, value in options.items() if value is not None})


REINFORCE_BASELINE = Algorithm(
    "reinforce_baseline", advantages.centred, whiten=True, paper="REINFORCE++-baseline, arXiv 2501.03262"
)
GRPO = Algorithm("grpo", advantages.grpo, aggregation="sequence_mean_token_mean", kl="k3", paper="arXiv 2402.03300")
RLOO = Algorithm("rloo", advantages.rloo, aggregation="sequence_mean_token_sum", paper="arXiv 2402.14740")


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of a name, bundled or published by a plugin. Raises UserError for an unknown one."""
    found = plugins.load(plugins.ALGORITHMS, name)
    if not isinstance(found, Algorithm):
        raise UserError(f"algorithm {name!r} is no envhub Algorithm but {type(found).__name__}; repair its package")
    return found
