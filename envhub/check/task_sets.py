"""The check of the task set: splits that share nothing, and tasks that are the same for the same seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from envhub.check.report import fail, skip, warn
from envhub.check.subject import Subject
from envhub.tasks import EVAL, TRAIN, SeedTasks, Task, TaskSet

_LOOKED_AT = 50
_CHANCE = 0.1


@dataclass(frozen=True, slots=True)
class _Look:
    """What is read of a task set: the first tasks of train and eval, endless or not."""

    train: tuple[Task, ...]
    eval: tuple[Task, ...]
    endless: bool


async def splits(subject: Subject) -> str:
    """Train and eval share no task; the same seed gives the same tasks, another seed others."""
    if await subject.read(lambda tasks: isinstance(tasks, SeedTasks)):
        raise skip("each task is nothing but a seed, and splits never share seeds")
    first, again = await subject.read(_look), await subject.read(_look)
    for one, two in zip((*first.train, *first.eval), (*again.train, *again.eval), strict=True):
        if repr(one) != repr(two):
            raise fail(
                f"two task sets give different tasks at index {one.index} of {one.split}: "
                f"{_content(one):.100} and {_content(two):.100}",
                "draw tasks from the generator that is handed over; iterate over nothing unordered",
            )
    if first.endless:
        await _seeds(subject, first)
    if not first.train or not first.eval:
        return f"{len(first.train) + len(first.eval)} tasks looked at; there is no second split to leak into"
    _leaks(first)
    return f"{len(first.train)} tasks of train and {len(first.eval)} of eval share nothing"


def _look(tasks: TaskSet) -> _Look:
    return _Look(_first(tasks, TRAIN), _first(tasks, EVAL), TRAIN in tasks.splits and tasks.size(TRAIN) is None)


def _first(tasks: TaskSet, split: str, seed: int = 0) -> tuple[Task, ...]:
    if split not in tasks.splits:
        return ()
    size = tasks.size(split)
    return tuple(
        tasks.get(split, index, seed) for index in range(_LOOKED_AT if size is None else min(size, _LOOKED_AT))
    )


async def _seeds(subject: Subject, first: _Look) -> None:
    if len({_content(task) for task in first.train}) == 1:
        return  # the tasks are seeds in disguise: their content says nothing
    other = await subject.read(lambda tasks: _first(tasks, TRAIN, seed=1))
    if [_content(task) for task in first.train] == [_content(task) for task in other]:
        raise fail(
            "an endless task set gives the same tasks for the data seeds 0 and 1",
            "draw every task from the generator that is handed over",
        )


def _leaks(look: _Look) -> None:
    ids = {task.id for task in look.train} & {task.id for task in look.eval}
    if ids:
        raise fail(
            f"train and eval share {len(ids)} task ids, among them {sorted(ids)[0]!r}",
            "give each task to one split only: ListTasks.split_by_hash does so",
        )
    same = _keys(look.train) & _keys(look.eval)
    if not same:
        return
    example = sorted(same)[0]
    detail = f"{len(same)} of the first {len(look.eval)} tasks of eval are in train, too, among them {example:.120}"
    if look.endless and len(same) <= _CHANCE * len(look.eval):
        raise warn(f"{detail}: drawn twice by chance", "draw from a larger space, or keep its halves apart by split")
    raise fail(detail, "remove doubles before splitting, so that eval measures what was not trained on")


def _keys(tasks: Sequence[Task]) -> set[str]:
    """Tasks by prompt and answer; by all their content where one prompt is that of all."""
    if len(tasks) > 1 and len({repr(task.prompt) for task in tasks}) == 1:
        return {_content(task) for task in tasks}
    return {repr((task.prompt, task.answer)) for task in tasks}


def _content(task: Task) -> str:
    return repr((task.prompt, task.answer, dict(task.info)))
