"""Procedural families of graded difficulty, and tasks from JSON-lines files."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from envhub.errors import DataError, UserError, did_you_mean
from envhub.rewards.math_verify import extract, typed
from envhub.tasks import GeneratedTasks, ListTasks, Task, TaskSet, column, read_jsonl

Problem = tuple[str, str]  # question, answer
_SHOWN = 8


def _size(level: int) -> int:
    return int(10**level) - 1


def addition(rng: random.Random, level: int) -> Problem:
    a, b = rng.randint(1, _size(level)), rng.randint(1, _size(level))
    return f"What is {a} + {b}?", str(a + b)


def subtraction(rng: random.Random, level: int) -> Problem:
    a, b = rng.randint(1, _size(level)), rng.randint(1, _size(level))
    return f"What is {a} - {b}?", str(a - b)


def multiplication(rng: random.Random, level: int) -> Problem:
    a, b = rng.randint(2, _size(level)), rng.randint(2, 9 if level < 3 else _size(level - 1))
    return f"What is {a} times {b}?", str(a * b)


def fractions(rng: random.Random, level: int) -> Problem:
    from fractions import Fraction

    most = 4 + 4 * level
    a, b = (Fraction(rng.randint(1, most), rng.randint(2, most)) for _ in range(2))
    total = a + b
    answer = str(total.numerator) if total.denominator == 1 else rf"\frac{{{total.numerator}}}{{{total.denominator}}}"
    return rf"What is $\frac{{{a.numerator}}}{{{a.denominator}}} + \frac{{{b.numerator}}}{{{b.denominator}}}$?", answer


def linear_equation(rng: random.Random, level: int) -> Problem:
    x, a, b = (
        rng.randint(-(5**level), 5**level),
        rng.randrange(2, 4 + 3 * level),
        rng.randint(1, 9**level),
    )
    return f"Solve for x: {a}x + {b} = {a * x + b}.", str(x)


def remainder(rng: random.Random, level: int) -> Problem:
    a, b = rng.randint(10, 10 ** (level + 1)), rng.randint(2, 9 + 10 * (level - 1))
    return f"What is the remainder when {a} is divided by {b}?", str(a % b)


def common_divisor(rng: random.Random, level: int) -> Problem:
    import math

    shared = rng.randint(2, 6 * level)
    a, b = shared * rng.randint(1, 9 * level), shared * rng.randint(1, 9 * level)
    return f"What is the greatest common divisor of {a} and {b}?", str(math.gcd(a, b))


def factored_polynomial(rng: random.Random, level: int) -> Problem:
    a, b = rng.randint(1, 4 * level), rng.randint(1, 4 * level)
    return f"Expand (x + {a})(x + {b}).", f"x^2+{a + b}x+{a * b}"


FAMILIES: Mapping[str, Callable[[random.Random, int], Problem]] = {
    "addition": addition,
    "subtraction": subtraction,
    "multiplication": multiplication,
    "fractions": fractions,
    "linear_equation": linear_equation,
    "remainder": remainder,
    "common_divisor": common_divisor,
    "factored_polynomial": factored_polynomial,
}
LEVELS = (1, 2, 3, 4)


def procedural(families: tuple[str, ...], levels: tuple[int, ...]) -> TaskSet:
    """An endless task set that draws a family and a level for each task. Raises UserError for an unknown one."""
    for family in families:
        if family not in FAMILIES:
            hint = did_you_mean(family, FAMILIES)
            raise UserError(f"math_verify has no family {family!r}; there are {', '.join(FAMILIES)}{hint}")
    for level in levels:
        if level not in LEVELS:
            raise UserError(f"math_verify has levels {LEVELS[0]} to {LEVELS[-1]}, not {level}")

    def make(rng: random.Random) -> Task:
        family, level = rng.choice(families), rng.choice(levels)
        question, answer = FAMILIES[family](rng, level)
        return Task(question, answer, {"family": family, "level": level})

    name = f"math_verify/{','.join(families)}/{','.join(map(str, levels))}"
    return GeneratedTasks(name, make)


def from_jsonl(path: Path, question: str, answer: str, eval_fraction: float) -> TaskSet:
    r"""Tasks from a JSON-lines file; an answer may be plain, end in `#### 42`, or hold `\boxed{42}`.

    A row's own `split` column is kept; else a hash of each row decides. Raises DataError naming file and line, of all lines
    whose answers cannot be typed.
    """
    questions = (question,) if question else ("question", "problem", "prompt", "instruction")
    answers = (answer,) if answer else ("answer", "solution", "final_answer", "target", "label")
    tasks: dict[str, list[Task]] = {}
    untyped: list[str] = []
    for line, row in read_jsonl(path):
        asked = column(row, questions, path=path, line=line)
        gold = gold_answer(column(row, answers, path=path, line=line))
        if not isinstance(asked, str) or not asked.strip():
            raise DataError(f"{path}, line {line}: the question is empty or no text")
        if not gold:
            raise DataError(f"{path}, line {line}: the answer is empty")
        try:
            typed(gold)
        except DataError as problem:
            untyped.append(f"line {line}: {problem}")
        split = row.get("split", "")
        if not isinstance(split, str):
            raise DataError(f"{path}, line {line}: the split is {split!r}, not a name")
        split = {"test": "eval", "validation": "eval"}.get(split, split)
        tasks.setdefault(split, []).append(Task(asked, gold, {"line": line}, id=f"{path.stem}:{line}"))
    if untyped:
        more = [f"… and {len(untyped) - _SHOWN} more"] if len(untyped) > _SHOWN else []
        said = "\n".join(untyped[:_SHOWN] + more)
        raise DataError(
            f"{path}: {len(untyped)} gold answers cannot be typed, so nothing could be right; mend or remove:\n{said}"
        )
    name = f"math_verify/{path.name}"
    if set(tasks) == {""}:
        return ListTasks.split_by_hash(name, tasks[""], eval_fraction=eval_fraction)
    if "" in tasks:
        raise DataError(f"{path}: some rows have a 'split' column and some have none")
    return ListTasks(name, tasks)


def gold_answer(value: object) -> str:
    r"""The answer of a data file's column: after its last `####`, in its last box, or the whole of it."""
    text = str(value).strip() if not isinstance(value, bool) and value is not None else ""
    if "####" in text:
        return text.rpartition("####")[2].strip()
    found = extract(text)
    return found.text if found.text else text
