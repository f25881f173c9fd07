"""Of what run a checkpoint is: what must be the same for the run to go on as if it had never stopped."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from envhub.trainer.config import TrainConfig
from envhub.trainer.plan import Plan


class Origin(BaseModel):
    """What a run cannot change on its way.

    The tasks and their order (`env`, `env_config`, `split`, `seed`), the algorithm, the model that a KL is to, and the
    optimizer. Which parameters are trained stands in the checkpoint itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str
    env_config: dict[str, Any]
    split: str
    seed: int
    algo: str
    kl_to: str
    optimizer: str
    model: str = ""
    """The name of the initial model; empty in the checkpoints of earlier versions."""
    source: str = ""
    """The hash of the environment's source, which may change: whoever goes on is told."""

    @classmethod
    def of(cls, config: TrainConfig, plan: Plan) -> "Origin":
        """That of a run."""
        return cls(
            env=plan.environment.id, env_config=config.model_dump(mode="json")["env_config"], split=config.split,
            seed=config.seed, algo=plan.algorithm.name, kl_to=(config.reference or config.model) if plan.algorithm.kl_coef else "",
            optimizer=config.optimizer, model=config.model, source=plan.environment.content_hash or "",
        )  # fmt: skip

    def difference(self, run: "Origin") -> str:
        """In what a run that is to go on from here differs, or an empty string."""
        own, other = self.model_dump(exclude={"source"}), run.model_dump()
        changed = (name for name in own if own[name] != other[name] and (name != "model" or own[name]))
        return ", ".join(f"its {name} is {own[name]!r}, the run's {other[name]!r}" for name in changed)
