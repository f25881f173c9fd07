"""From a configuration to its parts, found and checked before anything is started."""

from dataclasses import dataclass
from typing import Any

import torch

from envhub.agents.engines import SamplingParams, choose_engine, make_engine
from envhub.agents.engines.precision import choose_device
from envhub.agents.parsers import get_parser
from envhub.driver import Driver
from envhub.errors import UserError
from envhub.limits import Limits
from envhub.registry import spec as find_spec
from envhub.specs import EnvironmentSpec
from envhub.trainer import losses
from envhub.trainer.algorithms import Algorithm, get_algorithm
from envhub.trainer.best import metric_of
from envhub.trainer.config import TrainConfig
from envhub.trainer.held_out import HeldOut, held_out
from envhub.trainer.shaping import Shaping
from envhub.trainer.threads import share_out
from envhub.trainer.tracking import refuse_missing

_OF_THE_ALGORITHM = (
    "kl_coef", "kl", "kl_in", "gamma", "lam", "loss", "clip_low", "clip_high", "dual_clip", "value_clip", "aggregation",
    "correction", "correction_low", "correction_high", "credit", "turn_gamma", "entropy_coef",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts that a configuration names, found and checked.

    `policy_steps` and `critic_steps` are how many optimizer steps the schedules of the two spread over; 0 without a critic.
    """

    algorithm: Algorithm
    environment: EnvironmentSpec
    limits: Limits
    held_out: tuple[HeldOut, ...]
    shaping: Shaping
    best: str
    policy_steps: int
    critic_steps: int


def plan(config: TrainConfig) -> Plan:
    """Check all names and sizes of a configuration without starting anything. Raises UserError."""
    algorithm = get_algorithm(config.algo).with_options(**{name: getattr(config, name) for name in _OF_THE_ALGORITHM})
    for name in ("critic_learning_rate", "critic_warmup", "lam", "value_clip"):
        if not algorithm.critic and getattr(config, name) != TrainConfig.model_fields[name].default:
            raise UserError(
                f"{name} is of a critic, and algorithm {algorithm.name!r} has none; leave it out, or use ppo"
            )
    if config.critic_warmup >= config.steps:
        raise UserError(
            f"critic_warmup {config.critic_warmup} is not below the {config.steps} steps of the run, so the policy would "
            "never be trained: lower it, or raise steps"
        )
    steps = _optimizer_steps(config, algorithm)
    _refuse_unread(config, algorithm)
    if config.reference and config.reference_every:
        raise UserError(
            "reference_every lets the policy become the reference, which would forget the one that reference names: leave "
            "out one of them"
        )
    sampled = config.tasks_per_step * config.group_size
    if config.updates_per_step > sampled:
        raise UserError(
            f"updates_per_step {config.updates_per_step} is more than the {sampled} rollouts of a step "
            "(tasks_per_step x group_size), so some updates would have none; lower it, or raise either of them"
        )
    if config.overlap and algorithm.correction == "none":
        raise UserError(
            "overlap learns from rollouts of the weights before the last update, which needs a correction: leave out "
            "overlap, or set correction to tis"
        )
    _check_support(config, algorithm)
    if config.filter_rounds and config.group_size < 2:
        raise UserError("filter_rounds compares the rollouts of a group: group_size is at least 2, not 1")
    if algorithm.needs_groups and config.group_size < 2:
        raise UserError(
            f"algorithm {algorithm.name!r} compares the rollouts of a task: group_size is at least 2, not {config.group_size}"
        )
    refuse_missing(config.track)
    found = find_spec(config.env)
    driver = Driver(found, config.env_config)
    if config.warm_start and not driver.has_oracle:
        raise UserError(f"warm_start learns from an oracle, and environment {found.id!r} has none; define oracle(self)")
    limits = driver.limits.replace(
        max_turns=config.max_turns, max_turn_tokens=config.max_turn_tokens, max_episode_tokens=config.max_episode_tokens
    )
    if algorithm.aggregation == "constant_length" and algorithm.length is None:
        algorithm = algorithm.with_options(length=_longest(limits))
    engine = make_engine(config.engine, config.model, options=engine_options(config))
    if engine.speaks != "tokens":
        raise UserError(f"engine {engine.name!r} gives text and no token ids, so nothing can be trained on it")
    if config.parser != "auto":
        get_parser(config.parser)
    choose_device(config.device)
    driver.tasks.get(config.split, 0, config.seed)
    evaluated = held_out(config, found)
    shaping = Shaping(
        config.reward_scale, config.reward_clip, config.truncated_factor, config.overlong_buffer or 0,
        config.overlong_factor, _longest(limits),
    )  # fmt: skip
    best = metric_of(config.best, config.eval_every, config.eval_tasks)
    return Plan(algorithm, found, limits, evaluated, shaping, best, *steps)


def _optimizer_steps(config: TrainConfig, algorithm: Algorithm) -> tuple[int, int]:
    """How many the policy and the critic take at most. Raises UserError for a warm-up of the learning rate beyond them."""
    policy = config.warm_start + (config.steps - config.critic_warmup) * config.updates_per_step
    critic = config.steps * config.updates_per_step if algorithm.critic else 0
    for name, total in (("run", policy), ("critic", critic)):
        if config.warmup_steps >= total > 0:
            raise UserError(
                f"warmup_steps {config.warmup_steps} is not below the {total} optimizer steps of the {name}"
            )
    return policy, critic


def _refuse_unread(config: TrainConfig, algorithm: Algorithm) -> None:
    """Raises UserError for a setting that was given, and that nothing in this configuration reads."""
    for name in losses.BOUNDS:
        if getattr(config, name) is not None and name not in algorithm.bounds:
            has = f"has only {', '.join(algorithm.bounds)}" if algorithm.bounds else "has no bounds"
            raise UserError(f"{name} is no bound of the loss {algorithm.loss!r}, which {has}; leave it out")
    for name in ("kl", "kl_in", "kl_target", "reference_every", "reference"):
        if getattr(config, name) and not algorithm.kl_coef:
            raise UserError(f"{name} is of the KL to a reference, which has no weight: set kl_coef above 0")
    if config.kl not in (None, "k1") and algorithm.kl_in == "reward":
        raise UserError(f"kl {config.kl} is for the loss; in the reward it is k1: leave out kl, or set kl_in to loss")
    if not config.eval_tasks:
        for name in ("eval_split", "eval_samples", "eval_every", "eval_temperature", "eval_top_p", "eval_top_k"):
            if getattr(config, name) != TrainConfig.model_fields[name].default:
                raise UserError(
                    f"{name} is of evaluations, and eval_tasks 0 leaves them all out: leave out one of them"
                )
    if not config.track and config.track_project != TrainConfig.model_fields["track_project"].default:
        raise UserError(
            "track_project is without effect where nothing is tracked: set track, or leave track_project out"
        )
    for name, needed in (("kl_horizon", "kl_target"), ("overlong_factor", "overlong_buffer")):
        if getattr(config, name) != TrainConfig.model_fields[name].default and getattr(config, needed) is None:
            raise UserError(f"{name} is without effect where no {needed} is set: set it, or leave {name} out")


def sampling_of(config: TrainConfig, *, evaluation: bool = False) -> SamplingParams:
    """How the rollouts of a run are sampled, or those of its evaluations."""
    names = ("temperature", "top_p", "top_k")
    values = {name: getattr(config, name) for name in names}
    own = {name: getattr(config, f"eval_{name}") for name in names} if evaluation else {}
    return SamplingParams(**{**values, **{name: value for name, value in own.items() if value is not None}})


def truncates(config: TrainConfig) -> bool:
    """Whether rollouts are sampled from less than the whole vocabulary."""
    return config.top_p < 1 or config.top_k > 0


def _check_support(config: TrainConfig, algorithm: Algorithm) -> None:
    if truncates(config) and algorithm.correction != "none":
        cut = f"top_p {config.top_p:g}" if config.top_p < 1 else f"top_k {config.top_k}"
        raise UserError(
            f"{cut} cuts the engine's distribution, and the correction {algorithm.correction!r} compares its logprobs with "
            "the trainer's, which are of the whole vocabulary: every weight would be off. Sample from all of it (top_p 1, "
            "top_k 0), or set correction to none"
        )


def _longest(limits: Limits) -> int:
    """The most tokens that an episode may sample."""
    turns = limits.max_turns * limits.max_turn_tokens
    return turns if limits.max_episode_tokens is None else min(turns, limits.max_episode_tokens)


_SEEDED = ("vllm", "transformers", "scripted")


def engine_options(config: TrainConfig) -> dict[str, Any]:
    """The options of the run's engine: those given, the run's seed where the engine takes one, and its share of the cores."""
    engine, own = choose_engine(config.engine), dict[str, Any]()
    if engine in _SEEDED:
        own["seed"] = config.seed
    if engine == "vllm" and config.overlap and not torch.cuda.is_available():
        own["threads"] = ",".join(map(str, share_out(True).engine))
    return {**own, **config.engine_options}


def trainer_threads(config: TrainConfig) -> int:
    """How many threads the trainer's process computes with: its share where the engine computes at the same time.

    Whoever gives the engine's `threads` has shared them out already.
    """
    shared = config.overlap and not torch.cuda.is_available() and "threads" not in config.engine_options
    return len(share_out(shared).trainer)
