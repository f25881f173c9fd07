"""envhub: write an environment once; evaluate any model on it and train any open model with it.

Public names are imported on first use, so that `import envhub` stays quick and pulls in nothing heavy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envhub.environment import Environment, EnvironmentConfig
    from envhub.errors import EnvironmentFault, ModelFault, UserError
    from envhub.limits import Limits
    from envhub.messages import Action, ImagePart, Message, Observation, TextPart, ToolCall, ToolSpec
    from envhub.outcome import Outcome
    from envhub.registry import make, register, spec
    from envhub.rewards import Reward, RewardContext, Rubric, reward
    from envhub.rollout import Rollout, Turn
    from envhub.single_turn import SingleTurnEnvironment, TaskEnvironment
    from envhub.spaces import as_gymnasium, from_gymnasium
    from envhub.specs import EnvironmentSpec
    from envhub.tasks import GeneratedTasks, ListTasks, Task, TaskSet
    from envhub.tools import ToolEnvironment, ToolError, tool
    from envhub.trajectory import Sample, Segment, Trajectory

__version__ = "0.1.0"

_NAMES = {
    "environment": ("Environment", "EnvironmentConfig"),
    "errors": ("EnvironmentFault", "ModelFault", "UserError"),
    "limits": ("Limits",),
    "messages": ("Action", "ImagePart", "Message", "Observation", "TextPart", "ToolCall", "ToolSpec"),
    "outcome": ("Outcome",),
    "registry": ("make", "register", "spec"),
    "rewards": ("Reward", "RewardContext", "Rubric", "reward"),
    "rollout": ("Rollout", "Turn"),
    "single_turn": ("SingleTurnEnvironment", "TaskEnvironment"),
    "spaces": ("as_gymnasium", "from_gymnasium"),
    "specs": ("EnvironmentSpec",),
    "tasks": ("GeneratedTasks", "ListTasks", "Task", "TaskSet"),
    "tools": ("ToolEnvironment", "ToolError", "tool"),
    "trajectory": ("Sample", "Segment", "Trajectory"),
}
_PLACES = {name: f"envhub.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "Action",
    "Environment",
    "EnvironmentConfig",
    "EnvironmentFault",
    "EnvironmentSpec",
    "GeneratedTasks",
    "ImagePart",
    "Limits",
    "ListTasks",
    "Message",
    "ModelFault",
    "Observation",
    "Outcome",
    "Reward",
    "RewardContext",
    "Rollout",
    "Rubric",
    "Sample",
    "Segment",
    "SingleTurnEnvironment",
    "Task",
    "TaskEnvironment",
    "TaskSet",
    "TextPart",
    "ToolCall",
    "ToolEnvironment",
    "ToolError",
    "ToolSpec",
    "Trajectory",
    "Turn",
    "UserError",
    "__version__",
    "as_gymnasium",
    "from_gymnasium",
    "make",
    "register",
    "reward",
    "spec",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'envhub' has no attribute {name!r}")
    module = importlib.import_module(_PLACES[name])
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
