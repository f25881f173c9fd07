"""Settings that every kind of training run has: their types, bounds and descriptions."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from envhub.agents.engines.base import TokenCount

Device: TypeAlias = Annotated[str, Field(description="device of the trainer: auto, cpu or cuda")]
Schedule: TypeAlias = Annotated[
    Literal["constant", "linear", "cosine"], Field(description="how the learning rate goes on after the warm-up")
]
WarmupSteps: TypeAlias = Annotated[
    int, Field(ge=0, le=1_000_000_000, description="optimizer steps in which the learning rate rises from 0")
]
WeightDecay: TypeAlias = Annotated[float, Field(ge=0, description="of the optimizer, on matrices")]
ClipNorm: TypeAlias = Annotated[float, Field(ge=0, description="largest gradient norm (0: any)")]
MicroTokens: TypeAlias = Annotated[TokenCount, Field(description="tokens of a micro-batch, with padding")]
Checkpointing: TypeAlias = Annotated[bool, Field(description="compute activations again instead of keeping them")]
SaveEvery: TypeAlias = Annotated[
    int, Field(ge=0, le=10_000_000, description="checkpoint after every so many steps (0: only at the end)")
]
Keep: TypeAlias = Annotated[int, Field(ge=1, le=10_000, description="checkpoints to keep")]
TensorBoard: TypeAlias = Annotated[bool, Field(description="write TensorBoard event files")]
