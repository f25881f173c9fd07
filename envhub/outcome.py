"""Why a rollout ended: one enum, used by executors, records, evaluation and training."""

from enum import Enum


class Outcome(str, Enum):
    """Why a rollout ended.

    Three kinds that are never merged: the episode was *scored* (finished, truncated, or the model's own fault), or a
    *fault* that is not the model's kept it from a score, or it was *discarded* by the run (cancelled, stale).
    """

    FINISHED = "finished"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TOKENS = "truncated_tokens"
    TRUNCATED_CONTEXT = "truncated_context"
    TRUNCATED_TIME = "truncated_time"
    TRUNCATED_ENVIRONMENT = "truncated_environment"
    MODEL_FAULT = "model_fault"
    ENVIRONMENT_FAULT = "environment_fault"
    ENGINE_FAULT = "engine_fault"
    CANCELLED = "cancelled"
    STALE = "stale"

    @property
    def is_truncated(self) -> bool:
        """A limit ended the episode, not the task."""
        return self.value.startswith("truncated")

    @property
    def is_fault(self) -> bool:
        """The environment or the engine failed: retried, then dropped with a count, never a reward of 0."""
        return self in (Outcome.ENVIRONMENT_FAULT, Outcome.ENGINE_FAULT)

    @property
    def is_scored(self) -> bool:
        """The reward is the model's: the rollout counts in rates and may be trained on."""
        return self is Outcome.FINISHED or self is Outcome.MODEL_FAULT or self.is_truncated

    def __str__(self) -> str:
        return self.value
