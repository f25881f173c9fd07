"""Settings that every kind of training run has: their types, bounds and descriptions."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from envhub.agents.engines.base import TokenCount

Device: TypeAlias = Annotated[str, Field(description="device of the trainer: auto, cpu or cuda")]
LearningRate: TypeAlias = Annotated[float, Field(gt=0, le=1e3, description="of the optimizer")]
Schedule: TypeAlias = Annotated[
    Literal["constant", "linear", "cosine"], Field(description="how the learning rate goes on after the warm-up")
]
WarmupSteps: TypeAlias = Annotated[
    int, Field(ge=0, le=1_000_000_000, description="optimizer steps in which the learning rate rises from 0")
]
WeightDecay: TypeAlias = Annotated[float, Field(ge=0, le=1e3, description="of the optimizer, on matrices")]
ClipNorm: TypeAlias = Annotated[float, Field(ge=0, le=1e12, description="largest gradient norm (0: any)")]
MicroTokens: TypeAlias = Annotated[TokenCount, Field(description="tokens of a micro-batch, with padding")]
Checkpointing: TypeAlias = Annotated[bool, Field(description="compute activations again instead of keeping them")]
LoraRank: TypeAlias = Annotated[
    int, Field(ge=0, le=65_536, description="train an adapter of this rank beside the model (0: all of its weights)")
]
LoraAlpha: TypeAlias = Annotated[
    float | None, Field(gt=0, le=1e6, description="factor of the adapter, over its rank (default: 2 times the rank)")
]
LoraTargets: TypeAlias = Annotated[
    str | None,
    Field(
        max_length=10_000,
        description="layers that get an adapter, by the ends of their names, such as q_proj,v_proj (default: all linear "
        "layers of the decoder)",
    ),
]
SaveEvery: TypeAlias = Annotated[
    int, Field(ge=0, le=10_000_000, description="checkpoint after every so many steps (0: only at the end)")
]
Keep: TypeAlias = Annotated[int, Field(ge=1, le=10_000, description="checkpoints to keep")]
TensorBoard: TypeAlias = Annotated[bool, Field(description="write TensorBoard event files")]
Track: TypeAlias = Annotated[
    tuple[Literal["wandb", "trackio"], ...],
    Field(description="tracker that also gets the metrics: wandb or trackio, again for both"),
]
TrackProject: TypeAlias = Annotated[str, Field(min_length=1, max_length=100, description="project of the trackers")]


def target_names(text: str | None) -> tuple[str, ...]:
    """The names that a setting lists, with commas between them."""
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def check_lora(settings: BaseModel) -> None:
    """Raise ValueError for settings of an adapter that do not go together, or with the optimizer."""
    values: Any = settings
    if not values.lora_rank:
        for name in ("lora_alpha", "lora_targets"):
            if getattr(values, name) is not None:
                raise ValueError(f"{name} is of an adapter, and there is none: set lora_rank above 0, or leave it out")
    elif values.lora_targets is not None and not target_names(values.lora_targets):
        raise ValueError("lora_targets names no layer: give names such as q_proj,v_proj, or leave it out")
    elif getattr(values, "optimizer", "adamw") == "muon":
        raise ValueError(
            "muon makes the update of a whole matrix orthogonal, and an adapter has only two factors of one: "
            "set optimizer to adamw, or lora_rank to 0"
        )
