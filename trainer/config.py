"""The configuration of a training run: one typed model, from TOML or JSON, flags and presets."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envhub.agents.engines.base import Seed, Temperature, TokenCount, TurnCount
from envhub.environment import validate_config
from envhub.errors import UserError
from envhub.records import read_json
from envhub.trainer.presets import ALGORITHM_PRESETS, Layers, merged
from envhub.trainer.settings import (
    Checkpointing,
    ClipNorm,
    Device,
    Keep,
    LearningRate,
    LoraAlpha,
    LoraRank,
    LoraTargets,
    MicroTokens,
    SaveEvery,
    Schedule,
    TensorBoard,
    Track,
    TrackProject,
    WarmupSteps,
    WeightDecay,
    check_lora,
)

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"steps": 24, "tasks_per_step": 3, "group_size": 6, "max_turn_tokens": 48, "eval_tasks": 80,
            "eval_samples": 2, "save_every": 5, "temperature": 0.8, "learning_rate": 3e-5, "micro_tokens": 2048, "concurrency": 64},
    "gpu": {"steps": 100, "tasks_per_step": 64, "group_size": 8, "max_turn_tokens": 1024, "eval_tasks": 64,
            "save_every": 10, "learning_rate": 1e-6, "micro_tokens": 16384, "concurrency": 512, "gradient_checkpointing": True},
    "test": {"steps": 2, "tasks_per_step": 2, "group_size": 4, "max_turn_tokens": 24, "eval_tasks": 4,
             "learning_rate": 1e-3, "micro_tokens": 2048, "concurrency": 16, "model": "tiny", "engine": "transformers"},
}  # fmt: skip

_OF_ENVIRONMENT: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("cpu", "sandbox_code"): {"max_turns": 1},  # a model that fits a CPU hardly uses a second, which takes as long
}
_MOST_ROLLOUTS = 1_000_000  # of a step, and of an evaluation


class TrainConfig(BaseModel):
    """Everything that defines a run. Unknown keys are errors; the resolved values are saved with the run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    env: str = Field(description="environment: an id, a file, or file.py:Class")
    env_config: dict[str, Any] = Field(default_factory=dict, description="configuration of the environment")
    algo: str = Field("reinforce_baseline", description="algorithm")
    model: str = Field("smollm2", description="initial model: an alias, a folder, or org/name of the hub")
    engine: str = Field(
        "auto", description="engine for rollouts; auto is vllm where it is installed, else transformers"
    )
    engine_options: dict[str, Any] = Field(default_factory=dict, description="options of the engine")
    executor: Literal["multi_turn", "single_turn"] = Field("multi_turn", description="how episodes are played")
    parser: str = Field("auto", description="parser of the model's tool calls and reasoning")
    preset: Literal["auto", "cpu", "gpu", "test"] = Field("auto", description="sizes that fit a machine; auto looks")
    device: Device = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="arithmetic of the trainer's model")
    seed: Seed = Field(0, description="of task order and sampling")
    split: str = Field("train", description="split of the task set to train on")

    steps: int = Field(100, ge=1, le=10_000_000, description="training steps, in all (a resumed run goes on up to it)")
    tasks_per_step: int = Field(64, ge=1, le=65_536, description="tasks sampled for each step")
    group_size: int = Field(8, ge=1, le=4_096, description="rollouts of each task")
    updates_per_step: int = Field(1, ge=1, le=1_024, description="optimizer steps for the rollouts of a step")
    overlap: bool = Field(
        False,
        description="sample the rollouts of the next step while the weights are updated; they are of the weights before",
    )
    filter_rounds: int = Field(
        0,
        ge=0,
        le=1_000,
        description="how many times groups of equal rewards (before they are shaped), which teach nothing, are replaced by "
        "other tasks' (0: kept)",
    )
    minimum_group: int | None = Field(
        None, ge=1, le=4_096, description="smallest group that is kept after faults (default: 2)"
    )
    concurrency: int = Field(64, ge=1, le=65_536, description="rollouts that run at once")
    retries: int = Field(2, ge=0, le=1_000, description="new attempts after a fault")

    temperature: Temperature = Field(1.0, gt=0, description="sampling temperature")
    top_p: float = Field(
        1.0, gt=0, le=1, description="nucleus of the distribution; below 1 only with --correction none"
    )
    top_k: int = Field(
        0, ge=0, le=1_000_000, description="most likely tokens to choose from (0: all); only with --correction none"
    )
    max_turns: TurnCount | None = Field(None, description="turns of an episode (default: the environment's)")
    max_turn_tokens: TokenCount | None = Field(
        None, description="sampled tokens of a turn (default: the environment's)"
    )
    max_episode_tokens: TokenCount | None = Field(None, description="sampled tokens of an episode")

    learning_rate: LearningRate = 1e-6
    warm_start: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="optimizer steps on episodes of the environment's oracle before the first training step",
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="adamw, or muon for the matrices of the layers and adamw for the rest"
    )
    schedule: Schedule = "constant"
    warmup_steps: WarmupSteps = 0
    weight_decay: WeightDecay = 0.0
    clip_norm: ClipNorm = 1.0
    micro_tokens: MicroTokens = 4096
    gradient_checkpointing: Checkpointing = False
    lora_rank: LoraRank = 0
    lora_alpha: LoraAlpha = None
    lora_targets: LoraTargets = None
    kl_coef: float | None = Field(None, ge=0, le=1e60, description="weight of the KL to the reference")
    reference: str | None = Field(
        None, description="model that the KL is to, of the same vocabulary (default: the initial model)"
    )
    kl_target: float | None = Field(
        None, gt=0, description="KL an action token that the weight is adapted to, step by step (default: it stays)"
    )
    kl_horizon: int = Field(
        10_000, ge=1, le=1_000_000_000, description="rollouts in which the weight can grow by a fifth, with --kl-target"
    )
    reference_every: int = Field(
        0, ge=0, le=10_000_000, description="let the policy become the reference after every so many steps (0: never)"
    )
    kl: str | None = Field(None, description="its estimate: k1, k2, k3 or k3_unbiased")
    kl_in: Literal["loss", "reward"] | None = Field(
        None, description="where it counts: as a loss, or (as k1) taken from the reward of its token"
    )
    gamma: float | None = Field(None, ge=0, le=1, description="discount a token of the reward")
    lam: float | None = Field(None, ge=0, le=1, description="lambda of the critic's advantage estimates")
    value_clip: float | None = Field(None, gt=0, description="how far a step may move a value of the critic")
    critic_learning_rate: float | None = Field(
        None, gt=0, le=1e3, description="of the critic's optimizer (default: 10 times the policy's)"
    )
    critic_warmup: int = Field(0, ge=0, le=10_000_000, description="training steps in which only the critic is trained")
    credit: Literal["episode", "turn"] | None = Field(
        None,
        description="what a turn's tokens are credited with: the whole episode, or what is rewarded from that turn on",
    )
    turn_gamma: float | None = Field(None, ge=0, le=1, description="discount a turn of the reward, with --credit turn")
    entropy_coef: float | None = Field(
        None, ge=0, le=1e6, description="weight of the entropy that is taken from the loss"
    )
    loss: str | None = Field(None, description="policy loss: ppo, gspo, gmpo, cispo, sapo or nll")
    clip_low: float | None = Field(None, gt=0, le=1, description="lower clip of the ratio")
    clip_high: float | None = Field(None, gt=0, description="upper clip of the ratio")
    dual_clip: float | None = Field(None, gt=1, description="bound of the loss of bad answers, times the advantage")
    aggregation: str | None = Field(None, description="how token losses are averaged")
    correction: str | None = Field(
        None,
        description="correction for the engine's logprobs: tis, mis, icepop, sequence_tis, sequence_mis, sequence_mask, "
        "k3_mask, opsm, bypass or none",
    )
    correction_low: float | None = Field(None, ge=0, description="its lower bound")
    correction_high: float | None = Field(None, gt=0, description="its upper bound, or cap")
    reward_scale: float = Field(1.0, gt=0, le=1e6, description="factor of rewards, before all that follows")
    reward_clip: float | None = Field(None, gt=0, description="bound of rewards: to ± this")
    truncated_factor: float = Field(
        1.0, ge=0, le=1, description="factor of the reward of an answer that a token limit cut off"
    )
    overlong_buffer: TokenCount | None = Field(
        None, description="tokens before the longest episode at which the penalty of length begins (default: none)"
    )
    overlong_factor: float = Field(1.0, ge=0, le=1e6, description="that penalty at the longest episode")
    transfer: Literal["memory", "folder"] = Field("memory", description="how weights go to the engine")

    eval_env: tuple[str, ...] = Field(
        (), description="environment to evaluate on, again for each of several (default: the one that is trained on)"
    )
    eval_split: str = Field("eval", description="split of the held-out tasks")
    eval_tasks: int = Field(
        64, ge=0, le=1_000_000, description="held-out tasks of each environment, before and after (0: no evaluation)"
    )
    eval_samples: int = Field(1, ge=1, le=10_000, description="samples of each held-out task")
    eval_every: int = Field(
        0, ge=0, le=10_000_000, description="also evaluate after every so many steps (0: only before and after)"
    )
    eval_temperature: Temperature | None = Field(None, description="of the evaluation (default: as in training)")
    eval_top_p: float | None = Field(None, gt=0, le=1, description="of the evaluation (default: as in training)")
    eval_top_k: int | None = Field(None, ge=0, le=1_000_000, description="of the evaluation (default: as in training)")

    output: Path | None = Field(None, description="run folder (default: runs/ENVIRONMENT-ALGORITHM-N)")
    save_every: SaveEvery = 0
    keep: Keep = 2
    best: str = Field(
        "auto",
        description="metric of the evaluations by which the best checkpoint is chosen, and kept: reward, reward_low, passed, "
        "passed_low, none, or auto (reward with --eval-every, else none)",
    )
    tensorboard: TensorBoard = True
    track: Track = ()
    track_project: TrackProject = "envhub"

    @model_validator(mode="after")
    def _consistent(self) -> "TrainConfig":
        if self.minimum_group is not None and self.minimum_group > self.group_size:
            raise ValueError(f"minimum_group {self.minimum_group} is larger than group_size {self.group_size}")
        for tasks, samples in (("tasks_per_step", "group_size"), ("eval_tasks", "eval_samples")):
            count = getattr(self, tasks) * getattr(self, samples)
            if count > _MOST_ROLLOUTS:
                raise ValueError(f"{tasks} x {samples} is at most {_MOST_ROLLOUTS}, not {count}")
        check_lora(self)
        return self


def resolve(values: Mapping[str, Any], *, file: Path | None = None) -> TrainConfig:
    """A configuration from a file, overridden by `values` (None: not given), on top of the presets of machine and algorithm.

    The file is TOML, or JSON as a run saves it. Raises UserError naming the key and the nearest valid one.
    """
    made: TrainConfig = validate_config(TrainConfig, merged(layers(values, file)), "the training configuration")
    return made


def layers(values: Mapping[str, Any], file: Path | None = None) -> Layers:
    """The sources of a configuration, each with its values; later ones win. Raises UserError."""
    written = {} if file is None else read_settings(file)
    flags = {key: value for key, value in values.items() if value is not None}
    given = {**written, **flags}
    if "env" not in given:
        raise UserError("say what to train on: --env sandbox_code (envhub list shows all)")
    preset = given.get("preset", "auto")
    machine = _machine() if preset == "auto" else str(preset)
    algorithm = str(given.get("algo", TrainConfig.model_fields["algo"].default))
    return [
        (f"preset {machine}", PRESETS.get(machine, {})),
        (f"preset {machine} of {given['env']}", _OF_ENVIRONMENT.get((machine, str(given["env"])), {})),
        (f"preset of algorithm {algorithm}", ALGORITHM_PRESETS.get(algorithm, {})),
        (str(file), written),
        ("given", flags),
    ]


def _machine() -> str:
    import torch

    return "gpu" if torch.cuda.is_available() else "cpu"


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a file: TOML, or JSON as a run saves it. Raises UserError."""
    if path.suffix == ".json":
        return read_json(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"cannot read {path}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:  # no TOML, no UTF-8, a number of thousands of digits
        raise UserError(f"{path} is no TOML: {problem}") from None
