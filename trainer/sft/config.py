"""The configuration of supervised fine-tuning, from flags and a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envhub.agents.engines.base import Seed, TokenCount
from envhub.environment import validate_config
from envhub.errors import UserError
from envhub.trainer.config import read_settings
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

SOURCES = ("data", "from_oracle", "from_rollouts")
_OF_SOURCES = {
    "env_config": ("from_oracle",),
    "tasks": ("from_oracle",),
    "split": ("from_oracle",),
    "parser": ("from_oracle",),
    "concurrency": ("from_oracle",),
    "min_reward": ("from_oracle", "from_rollouts"),
}
CHANGEABLE = (
    "steps", "epochs", "learning_rate", "eval_every", "save_every", "keep", "track", "track_project",
)  # fmt: skip
"""The settings that a run may change when it goes on."""


class SftConfig(BaseModel):
    """Everything that defines a supervised run. Unknown keys are errors; the resolved values are saved with the run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    data: Path | None = Field(None, description="conversations: JSON lines with `messages` and, where needed, `tools`")
    from_oracle: str | None = Field(None, description="environment whose oracle plays: an id, a file, or file.py:Class")
    from_rollouts: Path | None = Field(
        None, description="recorded rollouts: a run folder, or its rollouts.jsonl or rollouts.sqlite"
    )
    env_config: dict[str, Any] = Field(default_factory=dict, description="configuration of the oracle's environment")
    tasks: int = Field(64, ge=1, le=1_000_000, description="tasks that the oracle plays")
    split: str = Field("train", description="split of the oracle's tasks")
    parser: str = Field(
        "auto", description="parser of the model's tool calls, with which the oracle's answers are read"
    )
    concurrency: int = Field(64, ge=1, le=65_536, description="episodes of the oracle that run at once")
    min_reward: float | None = Field(
        None, description="least reward of a rollout that is trained on (default: above 0)"
    )

    model: str = Field("smollm2", description="initial model: an alias, a folder, or org/name of the hub")
    device: Device = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="arithmetic of the model")
    seed: Seed = Field(0, description="of the order of samples, of what is held out, and of the oracle's tasks")

    epochs: float | None = Field(None, gt=0, le=1e6, description="how often every sample is seen (default: 1)")
    steps: int | None = Field(None, ge=1, le=10_000_000, description="optimizer steps, in place of epochs")
    batch_size: int = Field(16, ge=1, le=1_000_000, description="samples of an optimizer step")
    max_tokens: TokenCount | None = Field(
        None,
        description="longer samples are cut at their end and counted; one without a trained token before the cut is "
        "dropped and counted (default: the model's context)",
    )
    eval_fraction: float = Field(0.0, ge=0, lt=1, description="share of the conversations or tasks that is held out")
    eval_every: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="also score the held-out part after every so many steps (0: before and after)",
    )

    learning_rate: LearningRate = 2e-5
    schedule: Schedule = "constant"
    warmup_steps: WarmupSteps = 0
    weight_decay: WeightDecay = 0.0
    clip_norm: ClipNorm = 1.0
    micro_tokens: MicroTokens = 4096
    gradient_checkpointing: Checkpointing = False
    lora_rank: LoraRank = 0
    lora_alpha: LoraAlpha = None
    lora_targets: LoraTargets = None

    output: Path | None = Field(None, description="run folder (default: runs/sft-SOURCE-N)")
    save_every: SaveEvery = 0
    keep: Keep = 2
    tensorboard: TensorBoard = True
    track: Track = ()
    track_project: TrackProject = "envhub"

    @model_validator(mode="after")
    def _consistent(self) -> "SftConfig":
        check_lora(self)
        if self.eval_every and not self.eval_fraction:
            raise ValueError(
                "eval_every scores what is held out, and nothing is: set eval_fraction, or leave eval_every out"
            )
        return self

    @property
    def source(self) -> str:
        """Which of `data`, `from_oracle` and `from_rollouts` is trained on."""
        return next(name for name in SOURCES if getattr(self, name) is not None)


def resolve(values: Mapping[str, Any], *, file: Path | None = None) -> SftConfig:
    """A configuration from a file, overridden by `values` (None: not given), of which one may name another source.

    The file is TOML, or JSON as a run saves it. Raises UserError naming the key and the nearest valid one.
    """
    flags = {key: value for key, value in values.items() if value is not None}
    given = {**_kept(read_settings(file), flags), **flags} if file is not None else flags
    sources = [name for name in SOURCES if name in given]
    if not sources:
        raise UserError(
            "say what to train on: --data chat.jsonl, --from-oracle guess_number, or --from-rollouts runs/NAME"
        )
    if len(sources) > 1:
        raise UserError(f"a run trains on one source: leave out {' or '.join(map(_flag, sources))}")
    if "epochs" in given and "steps" in given:
        raise UserError("--epochs and --steps both say how long to train: leave one out")
    for name, owners in _OF_SOURCES.items():
        if name in given and sources[0] not in owners:
            raise UserError(f"{_flag(name)} goes with {' or '.join(map(_flag, owners))}, not with {_flag(sources[0])}")
    made: SftConfig = validate_config(SftConfig, given, "the sft configuration")
    return made


def _kept(written: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says that is no default and that no flag stands for: another source, or another length."""
    replaced = {name for group in (SOURCES, ("epochs", "steps")) if set(group) & flags.keys() for name in group}
    fields = SftConfig.model_fields
    default = {
        key
        for key, value in written.items()
        if key in fields and value == fields[key].get_default(call_default_factory=True)
    }
    kept = {key: value for key, value in written.items() if key not in replaced | default}
    if replaced & set(SOURCES):
        source = next(name for name in SOURCES if name in flags)
        kept = {key: value for key, value in kept.items() if source in _OF_SOURCES.get(key, (source,))}
    return kept


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
