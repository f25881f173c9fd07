"""Evaluation: samples per task, pass@k, intervals clustered by task, faults with their denominators."""

from envhub.agents.evaluation.run import EvalPlan, choose_tasks, evaluate, still_valid
from envhub.agents.evaluation.statistics import (
    Comparison,
    FirstError,
    Interval,
    Summary,
    clustered_interval,
    compare,
    pass_at_k,
    passes,
    summarise,
)

__all__ = [
    "Comparison",
    "EvalPlan",
    "FirstError",
    "Interval",
    "Summary",
    "choose_tasks",
    "clustered_interval",
    "compare",
    "evaluate",
    "pass_at_k",
    "passes",
    "still_valid",
    "summarise",
]
