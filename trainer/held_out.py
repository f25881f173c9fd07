"""What a training run is evaluated on, found and checked before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envhub.driver import Driver
from envhub.errors import UserError
from envhub.limits import Limits
from envhub.registry import spec as find_spec
from envhub.specs import EnvironmentSpec
from envhub.tasks import EVAL
from envhub.trainer.config import TrainConfig


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What a run is evaluated on: the first `tasks` tasks of a split of an environment."""

    environment: EnvironmentSpec
    config: Mapping[str, Any]
    limits: Limits
    split: str
    tasks: int


def held_out(config: TrainConfig, trained: EnvironmentSpec) -> tuple[HeldOut, ...]:
    """What a configuration says to evaluate on; nothing is started. `trained` is the environment that is trained on.

    Another environment than that is evaluated with its own configuration and its own number of turns, on its split
    `eval_split` or, where it has none of that name, `eval`. Raises UserError for one that is not known, has no such split,
    or is given twice.
    """
    if not config.eval_tasks:
        if config.eval_env:
            raise UserError(
                "eval_env says what to evaluate on, and eval_tasks 0 that nothing is: leave out one of them"
            )
        return ()
    out: dict[str, HeldOut] = {}
    for found in [find_spec(name) for name in config.eval_env] or [trained]:
        if found.id in out:
            other = out[found.id].environment.target
            if other != found.target:
                raise UserError(
                    f"eval_env names two environments {found.id!r}, {other} and {found.target}; give one of them another name"
                )
            raise UserError(f"eval_env names {found.id!r} twice; name each environment once")
        own = (found.id, found.target) == (trained.id, trained.target)
        values = config.env_config if own else {}
        driver = Driver(found, values)
        splits = driver.tasks.splits
        split = EVAL if not own and config.eval_split not in splits and EVAL in splits else config.eval_split
        driver.tasks.get(split, 0, config.seed)
        limits = driver.limits.replace(
            max_turns=config.max_turns if own else None,
            max_turn_tokens=config.max_turn_tokens,
            max_episode_tokens=config.max_episode_tokens,
        )
        size = driver.tasks.size(split)
        count = config.eval_tasks if size is None else min(config.eval_tasks, size)
        out[found.id] = HeldOut(found, values, limits, split, count)
    return tuple(out.values())
