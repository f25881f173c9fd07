"""Which tasks come next: every task of a split once an epoch, in an order of the seed's; endless splits in sequence."""

import random
from collections.abc import Mapping

from envhub.tasks import Task, TaskSet, hashed_seed


class TaskSampler:
    """An endless sequence of training tasks whose place can be saved and taken up again."""

    def __init__(self, tasks: TaskSet, split: str, seed: int) -> None:
        self.tasks, self.split, self.seed = tasks, split, seed
        self.position = 0
        self._order: tuple[int, list[int]] = (-1, [])
        self._size = tasks.size(split) if split in tasks.splits else None
        tasks.get(split, 0, seed)  # an unknown split is refused now

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        out = [self._at(position) for position in range(self.position, self.position + count)]
        self.position += count
        return out

    @property
    def epoch(self) -> float:
        """How many times the split has been seen; the number of tasks taken for an endless one."""
        return self.position / self._size if self._size else float(self.position)

    def _at(self, position: int) -> Task:
        if self._size is None:
            return self.tasks.get(self.split, position, self.seed)
        epoch, index = divmod(position, self._size)
        if self._order[0] != epoch:
            order = list(range(self._size))
            random.Random(hashed_seed("task order", self.seed, epoch)).shuffle(order)
            self._order = epoch, order
        return self.tasks.get(self.split, self._order[1][index], self.seed)

    def state(self) -> dict[str, int]:
        """For a checkpoint."""
        return {"position": self.position, "seed": self.seed}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Take up a saved place."""
        self.position = state["position"]
