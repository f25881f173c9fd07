"""Limits of an episode, in one object, enforced by the executor and not by the environment."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

_MAX_TOKENS = 1_000_000_000
_MAX_SECONDS = 31_536_000.0


class Limits(BaseModel):
    """Limits of one episode. Every one has a default; None means that this one does not apply.

    `max_turns` counts the model's turns. Token limits count sampled tokens, `max_context_tokens` counts everything that
    the engine is given plus what it samples (the engine's own context length applies as well). Times are in seconds:
    `step_seconds` for one call of `reset` or `step`, `turn_seconds` for one generation, `episode_seconds` for all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    max_turns: int = Field(16, ge=1, le=1_000_000)
    max_turn_tokens: int = Field(1024, ge=1, le=_MAX_TOKENS)
    max_episode_tokens: int | None = Field(16_384, ge=1, le=_MAX_TOKENS)
    max_context_tokens: int | None = Field(None, ge=2, le=_MAX_TOKENS)
    step_seconds: float = Field(60.0, gt=0, le=_MAX_SECONDS)
    turn_seconds: float = Field(600.0, gt=0, le=_MAX_SECONDS)
    episode_seconds: float = Field(1800.0, gt=0, le=_MAX_SECONDS)

    def replace(self, **changes: Any) -> "Limits":
        """The same limits with some changed; changes of None are skipped. Raises pydantic.ValidationError."""
        given = {key: value for key, value in changes.items() if value is not None}
        return Limits.model_validate({**self.model_dump(), **given})
