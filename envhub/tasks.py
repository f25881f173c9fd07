"""Tasks and task sets: what the episodes of an environment are about.

A task set has named splits and gives the task of every (split, seed, index). The randomness of an item derives from a
hash of (set, split, seed, index), so that neighbouring seeds and different splits never share items.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envhub.errors import DataError, UserError, did_you_mean
from envhub.guard import authors_mistake, require, require_all, shown
from envhub.messages import Message
from envhub.strict_json import read_line

TRAIN = "train"
EVAL = "eval"


def hashed_seed(*parts: object) -> int:
    """A 63-bit seed from a hash of all parts, the same on every machine and in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `prompt` is a str (a user message) or messages; `answer` is for rewards and never shown to the model.

    Raises TypeError for values of other types, ValueError for an index or a seed of more than 128 bits.
    """

    prompt: str | tuple[Message, ...] = ""
    answer: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    split: str = TRAIN
    index: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            require_all(self.prompt, Message, "a task's prompt is a str or")
        require(self.info, Mapping, "a task's info")
        for name in ("id", "split"):
            require(getattr(self, name), str, f"a task's {name}")
        for name in ("index", "seed"):
            value = getattr(self, name)
            require(value, int, f"a task's {name}")
            if isinstance(value, bool):
                raise TypeError(f"a task's {name} is an int, not {value}")
            if value.bit_length() > 128:
                raise ValueError(f"a task's {name} has at most 128 bits, not {value.bit_length()}")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The prompt as messages."""
        return (Message("user", self.prompt),) if isinstance(self.prompt, str) else self.prompt

    @property
    def rng(self) -> random.Random:
        """A fresh generator seeded with this task's own seed."""
        return random.Random(self.seed)


class TaskSet(ABC):
    """A named set of tasks in splits, finite or infinite."""

    name: str = "tasks"

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""

    @abstractmethod
    def size(self, split: str) -> int | None:
        """How many tasks the split has; None when it never ends."""

    @abstractmethod
    def _make(self, split: str, index: int, seed: int) -> Task:
        """The content of one task; `seed` is the item's own hashed seed. Id, split, index and seed are filled in."""

    def get(self, split: str, index: int, seed: int = 0) -> Task:
        """The task at `index` of `split` under the run's data `seed`.

        Raises UserError for an unknown split and for a task that cannot be made, and IndexError for an index outside of
        the split.
        """
        if split not in self.splits:
            hint = did_you_mean(split, self.splits)
            raise UserError(f"task set {self.name!r} has no split {split!r} (it has {', '.join(self.splits)}){hint}")
        size = self.size(split)
        if index < 0 or (size is not None and index >= size):
            raise IndexError(f"task set {self.name!r}, split {split!r}: no index {index} (size {size})")
        item_seed = hashed_seed(self.name, split, seed, index)
        task = self._checked(split, index, item_seed)
        default_id = f"{self.name}/{split}/{index}" if size is not None else f"{self.name}/{split}/{seed}/{index}"
        return replace(task, id=task.id or default_id, split=split, index=index, seed=item_seed)

    def _checked(self, split: str, index: int, seed: int) -> Task:
        what = f"task set {self.name!r}: making the task at index {index} of {split} (its seed: {seed})"
        with authors_mistake(what):
            task = self._make(split, index, seed)
        if not isinstance(task, Task):
            raise UserError(f"{what} gave no Task but {shown(task)}")
        return task

    def iterate(self, split: str, seed: int = 0) -> Iterator[Task]:
        """Every task of the split in order; never ends for an infinite one."""
        size, index = self.size(split), 0
        while size is None or index < size:
            yield self.get(split, index, seed)
            index += 1


class GeneratedTasks(TaskSet):
    """An infinite task set from a function of a seeded generator.

    `make(rng)` returns a Task; the same generator state gives the same task. Splits differ by their hashed seeds.
    """

    def __init__(
        self, name: str, make: Callable[[random.Random], Task], *, splits: Sequence[str] = (TRAIN, EVAL)
    ) -> None:
        self.name = name
        self._function = make
        self._splits = tuple(splits)

    @property
    def splits(self) -> tuple[str, ...]:
        return self._splits

    def size(self, split: str) -> int | None:
        return None

    def _make(self, split: str, index: int, seed: int) -> Task:
        return self._function(random.Random(seed))


class SeedTasks(GeneratedTasks):
    """The task set of an environment that has none: each task is nothing but a seed for `reset`."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda rng: Task())


class ListTasks(TaskSet):
    """A finite task set from lists, one a split."""

    def __init__(self, name: str, tasks: Mapping[str, Sequence[Task]]) -> None:
        empty = [split for split, items in tasks.items() if not items]
        if not tasks or empty:
            raise UserError(f"task set {name!r} has no tasks" + (f" in split {empty[0]!r}" if empty else ""))
        self.name = name
        self._tasks = {split: tuple(items) for split, items in tasks.items()}

    @classmethod
    def split_by_hash(cls, name: str, tasks: Sequence[Task], *, eval_fraction: float = 0.2) -> "ListTasks":
        """Split into train and eval by a hash of each task's content, so that adding tasks moves no other.

        At least one task lands in either split; a single task is in both. With a fraction of 1 there is no train split.
        """
        if not 0 < eval_fraction <= 1:
            raise UserError(f"eval_fraction is above 0 and at most 1, not {eval_fraction}")
        if eval_fraction == 1:
            return cls(name, {EVAL: list(tasks)})
        ranked = sorted(tasks, key=lambda task: hashed_seed("split", task.id or repr(task.prompt), repr(task.answer)))
        count = min(max(1, round(len(ranked) * eval_fraction)), max(1, len(ranked) - 1))
        chosen = {id(task) for task in ranked[:count]}
        train = [task for task in tasks if id(task) not in chosen] or list(tasks)
        return cls(name, {TRAIN: train, EVAL: [task for task in tasks if id(task) in chosen]})

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def size(self, split: str) -> int | None:
        return len(self._tasks[split])

    def _make(self, split: str, index: int, seed: int) -> Task:
        return self._tasks[split][index]


def read_jsonl(path: str | Path) -> list[tuple[int, dict[str, Any]]]:
    """Read a JSON-lines file as (line number from 1, object) pairs; blank lines are passed over.

    Raises DataError naming the file and the line for a missing file, text that is not UTF-8, a broken line, a line that
    is no object, what `envhub.strict_json.loads` refuses (a key twice, NaN, deep nesting), and a file without lines.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise DataError(f"cannot read {path}: {problem.strerror}") from problem
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        row = read_line(line, f"{path}, line {number}", first=number == 1)
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
        rows.append((number, row))
    if not rows:
        raise DataError(f"{path} holds no rows")
    return rows


def column(row: Mapping[str, Any], names: Sequence[str], *, path: str | Path, line: int) -> Any:
    """The value of the first of `names` that the row has; DataError naming line and nearest column when none is there."""
    for name in names:
        if name in row:
            return row[name]
    hint = did_you_mean(names[0], row)
    wanted = " or ".join(repr(name) for name in names)
    raise DataError(f"{path}, line {line}: no column {wanted}; it has {', '.join(sorted(row)) or 'none'}{hint}")
