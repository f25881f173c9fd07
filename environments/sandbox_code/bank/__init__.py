"""The task bank: Python functions whose docstring is the task and whose body is the reference solution.

A level's file opens with `task = Level(n)` and decorates one function per task; where a level has several files, the
others import `task` from the first. Arguments and results are JSON values: None, bool, int, float, str, list, and dict
with str keys.
"""

import ast
import copy
import importlib
import inspect
import string
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, TypeVar

LEVELS = (1, 2, 3, 4, 5, 6)
FILES = ("level_1", "level_1_text", "level_1_lists", "level_2", "level_3", "level_4", "level_5", "level_6")

Draw = Callable[[Random], Any]
Arguments = tuple[Any, ...]
Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "LEVELS",
    "Arguments",
    "BankTask",
    "Draw",
    "Level",
    "args",
    "choice",
    "either",
    "expected",
    "integer",
    "load_bank",
    "many",
    "mapping",
    "matrix",
    "sentence",
    "text",
]


@dataclass(frozen=True)
class BankTask:
    """One task: what the model is told, what it is tested on, and the reference solution.

    `solution` is source that runs on its own; the first `examples` of `cases` are shown to the model, the others and
    whatever `draw` yields are hidden tests.
    """

    id: str
    level: int
    name: str
    signature: str
    description: str
    solution: str
    cases: tuple[Arguments, ...]
    draw: Callable[[Random], Arguments]
    examples: int
    function: Callable[..., Any]


class Level:
    """Collects the tasks of one level; an instance is the decorator factory of the level's file."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tasks: list[BankTask] = []

    def __call__(
        self, cases: Sequence[Arguments], draw: Callable[[Random], Arguments], examples: int = 1
    ) -> Callable[[Function], Function]:
        """Return a decorator that adds the function as a task and returns it unchanged.

        Raises ValueError if the function has no docstring or `examples` is not between 0 and the number of cases.
        """
        if not 0 <= examples <= len(cases):
            raise ValueError(f"examples is {examples}; give a number from 0 to the {len(cases)} cases there are")

        def add(function: Function) -> Function:
            signature, description, solution = _split_source(function)
            self.tasks.append(
                BankTask(
                    id=f"L{self.number}/{function.__name__}",
                    level=self.number,
                    name=function.__name__,
                    signature=signature,
                    description=description,
                    solution=solution,
                    cases=tuple(cases),
                    draw=draw,
                    examples=examples,
                    function=function,
                )
            )
            return function

        return add


def _split_source(function: Callable[..., Any]) -> tuple[str, str, str]:
    """Return the signature, the docstring, and the source without decorators and docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef)
    description = ast.get_docstring(definition)
    if not description:
        raise ValueError(f"task {definition.name!r} has no docstring; describe the task in one")
    lines = source.splitlines()
    docstring = definition.body[0]
    head = lines[definition.lineno - 1 : docstring.lineno - 1]
    body = lines[docstring.end_lineno :]
    return " ".join(line.strip() for line in head), description, "\n".join(head + body).rstrip() + "\n"


@cache
def load_bank() -> tuple[BankTask, ...]:
    """Return every task, level by level, in the order of the files."""
    levels = [importlib.import_module(f"{__name__}.{file}").task for file in FILES]
    return tuple(task for level in dict.fromkeys(levels) for task in level.tasks)


def expected(task: BankTask, arguments: Sequence[Any]) -> Any:
    """Return what the reference solution gives for `arguments`, which are left unchanged."""
    return task.function(*copy.deepcopy(list(arguments)))


def args(*draws: Draw) -> Callable[[Random], Arguments]:
    """Draw one argument from each of `draws`."""
    return lambda rng: tuple(draw(rng) for draw in draws)


def integer(low: int = -99, high: int = 99) -> Draw:
    """Draw an int from `low` to `high`, both included."""
    return lambda rng: rng.randint(low, high)


def choice(*values: Any) -> Draw:
    """Draw one of `values`."""
    return lambda rng: copy.deepcopy(rng.choice(values))


def either(*draws: Draw) -> Draw:
    """Draw from one of `draws`, each as likely as the others."""
    return lambda rng: rng.choice(draws)(rng)


def text(alphabet: str = string.ascii_lowercase, low: int = 0, high: int = 8) -> Draw:
    """Draw a str of `low` to `high` characters of `alphabet`."""
    return lambda rng: "".join(rng.choices(alphabet, k=rng.randint(low, high)))


def many(item: Draw, low: int = 0, high: int = 8) -> Draw:
    """Draw a list of `low` to `high` values of `item`."""
    return lambda rng: [item(rng) for _ in range(rng.randint(low, high))]


def mapping(key: Draw, value: Draw, low: int = 0, high: int = 6) -> Draw:
    """Draw a dict of at most `high` entries; equal keys fall together, so there may be fewer than `low`."""
    return lambda rng: {key(rng): value(rng) for _ in range(rng.randint(low, high))}


def matrix(item: Draw, low: int = 1, high: int = 4) -> Draw:
    """Draw a list of `low` to `high` rows, all of the same length of `low` to `high` values of `item`."""

    def draw(rng: Random) -> list[list[Any]]:
        rows, columns = rng.randint(low, high), rng.randint(low, high)
        return [[item(rng) for _ in range(columns)] for _ in range(rows)]

    return draw


def sentence(low: int = 0, high: int = 6, word: Draw | None = None) -> Draw:
    """Draw `low` to `high` words, each of at least one character, joined by single spaces."""
    words = many(word or text(low=1), low, high)
    return lambda rng: " ".join(words(rng))
