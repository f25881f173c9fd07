"""Single-turn environments: a task set and reward functions."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from envhub.environment import Environment, Reset, Step
from envhub.limits import Limits
from envhub.messages import Action, ActionLike, Message, Observation
from envhub.rewards import Reward, RewardContext, Rubric
from envhub.tasks import TRAIN, Task, TaskSet


class TaskEnvironment(Environment):
    """An environment whose episodes are about the tasks of a task set, scored by a rubric.

    Keeps `self.task` and `self.messages` (the conversation so far). Subclasses give `tasks` and `rewards`.
    """

    rewards: ClassVar[tuple[Callable[..., Any] | Reward, ...]] = ()
    system_prompt: ClassVar[str] = ""

    task: Task
    messages: tuple[Message, ...] = ()

    @functools.cached_property
    def rubric(self) -> Rubric:
        """The rewards, composed."""
        return Rubric(*self.rewards)

    def begin(self, options: Mapping[str, Any] | None) -> Task:
        """Set `self.task` to the task of the options, or to one drawn by `self.rng` from the train split."""
        given = (options or {}).get("task")
        self.task = given if given is not None and (given.prompt or given.answer is not None) else self._draw()
        self.messages = self.opening(self.task)
        return self.task

    def opening(self, task: Task) -> tuple[Message, ...]:
        """The first messages of the conversation about a task."""
        head = (Message("system", self.system_prompt),) if self.system_prompt else ()
        return (*head, *task.messages)

    def _draw(self) -> Task:
        tasks: TaskSet = self.tasks
        split = TRAIN if TRAIN in tasks.splits else tasks.splits[0]
        size = tasks.size(split)
        return tasks.get(split, self.rng.randrange(size if size is not None else 2**31))

    async def score(self, action: Action) -> tuple[float, dict[str, Any]]:
        """The rubric's total for an action, and an info dictionary with the components. Raises RewardFault."""
        context = RewardContext(self.task, action, (*self.messages, action.message), self)
        verdict = await self.rubric.score(context)
        return verdict.total, {"components": dict(verdict.components)}


class SingleTurnEnvironment(TaskEnvironment):
    """One question, one answer, scored by reward functions. Subclasses give `tasks` and `rewards`; that is all.

    The oracle answers with the task's `answer` where it is a str and the subclass defines no other.
    """

    limits = Limits(max_turns=1)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Reset:
        task = self.begin(options)
        return Observation(self.messages), {"task": task.id}

    async def step(self, action: ActionLike) -> Step:
        action = Action.of(action)
        total, info = await self.score(action)
        return Observation(), total, True, False, info

    def oracle(self) -> ActionLike | None:
        return self.task.answer if isinstance(self.task.answer, str) else None
