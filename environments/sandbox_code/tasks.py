"""Coding tasks: the bundled bank, and JSON-lines files in envhub's own, the HumanEval and the MBPP layout."""

import ast
import builtins
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envhub.environments.sandbox_code.bank import BankTask, expected, load_bank
from envhub.environments.sandbox_code.rows import is_own, own_task
from envhub.errors import DataError, UserError
from envhub.sandbox import Comparison, is_plain
from envhub.tasks import ListTasks, Task, TaskSet, read_jsonl

DRAWN_TESTS = 4
EXACT = Comparison()


@dataclass(frozen=True, slots=True)
class Tests:
    """What a submission is held against. Never shown to the model, never inside its process.

    `cases` are pairs of arguments and expected value for `entry`. `program` is a test program of a data file, which
    calls the submission from a process of its own where no plain cases could be read from it. Without `exact_types` values are compared
    by `==` alone, as the assertions of data files do; else as `comparison` says. A program in `language` has no `entry`,
    and its cases are pairs of input and output. `unit_tests` import the submission as `module`.
    """

    entry: str
    cases: tuple[tuple[Any, Any], ...] = ()
    program: str = ""
    exact_types: bool = True
    language: str = ""
    comparison: Comparison = EXACT
    unit_tests: str = ""
    module: str = ""


def bank_tasks(levels: Sequence[int], eval_fraction: float) -> TaskSet:
    """The bundled bank's tasks of some levels, split by hash."""
    chosen = [_bank_task(item) for item in load_bank() if item.level in levels]
    return ListTasks.split_by_hash("sandbox_code", chosen, eval_fraction=eval_fraction)


def _bank_task(item: BankTask) -> Task:
    shown = "\n".join(
        f"{item.name}{_arguments(case)} == {expected(item, case)!r}" for case in item.cases[: item.examples]
    )
    prompt = f"{item.signature}\n\n{item.description.strip()}\n\nExample:\n{shown}"
    info = {"level": item.level, "name": item.name, "solution": item.solution, "entry": item.name}
    return Task(prompt, None, info, id=f"sandbox_code/{item.id}")


def _arguments(case: Sequence[Any]) -> str:
    return f"({', '.join(map(repr, case))})"


def tests_of(task: Task) -> Tests:
    """The hidden tests of a task: its own cases, and some drawn by the task's seed against the reference solution.

    Raises `UserError` for a task of another environment.
    """
    info = task.info
    if "unit_tests" in info:
        return Tests("", language=info["language"], unit_tests=info["unit_tests"], module=info["module"])
    if "hidden" in info:
        cases = tuple((given, expected) for given, expected in info["hidden"])
        return Tests(info["entry"], cases, language=info["language"], comparison=Comparison.of(info["comparison"]))
    if {"entry", "cases", "program"} <= info.keys():
        cases = tuple(ast.literal_eval(case) for case in info["cases"])
        return Tests(info["entry"], cases, info["program"], exact_types=False)
    item = _by_name().get(info.get("entry", ""))
    if item is None:
        raise UserError(f"task {task.id!r} is none of sandbox_code's; give one of the environment's own `tasks`")
    rng = task.rng
    arguments = [*item.cases, *(item.draw(rng) for _ in range(DRAWN_TESTS))]
    return Tests(item.name, tuple((tuple(case), expected(item, case)) for case in arguments))


def _by_name() -> Mapping[str, BankTask]:
    return {item.name: item for item in load_bank()}


def from_jsonl(path: Path, eval_fraction: float) -> TaskSet:
    """Tasks from a JSON-lines file in envhub's layout (see `own_task`), the HumanEval layout (`prompt`, `entry_point`,
    `test`, `canonical_solution`) or the MBPP layout (`text` or `prompt`, `test_list`, `code`).

    Raises DataError naming file and line.
    """
    tasks = [_row_task(path, line, row) for line, row in read_jsonl(path)]
    return ListTasks.split_by_hash(f"sandbox_code/{path.name}", tasks, eval_fraction=eval_fraction)


def _row_task(path: Path, line: int, row: Mapping[str, Any]) -> Task:
    where = f"{path}, line {line}"
    if is_own(row):
        return own_task(where, row, f"{path.stem}:{line}")
    if "test_list" in row:
        tests = row["test_list"]
        if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
            raise DataError(f"{where}: 'test_list' is a list of assertions")
        prompt = row.get("text") or row.get("prompt")
        setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
        program, entry = "\n".join([setup, *tests]), _called(tests[0])
        if not isinstance(prompt, str) or not prompt.strip():
            raise DataError(f"{where}: no column 'text' or 'prompt' with the task")
        prompt = f"{prompt.strip()}\n\nYour code should pass this test:\n{tests[0]}"
        solution = row.get("code") or ""
        cases = [] if setup.strip() else _plain_cases(tests, entry)
    elif "entry_point" in row:
        missing = [name for name in ("prompt", "test", "entry_point") if not isinstance(row.get(name), str)]
        if missing:
            raise DataError(f"{where}: no column {missing[0]!r}; the HumanEval layout has prompt, entry_point and test")
        entry, prompt = row["entry_point"], f"Complete this function:\n\n{row['prompt']}"
        program = f"{row['test']}\ncheck({entry})"
        solution, cases = row["prompt"] + (row.get("canonical_solution") or ""), []
        _parse(row["test"], where)
        _parse(f"{row['prompt']}\n    pass\n", where, "prompt is")
    else:
        have = ", ".join(sorted(row)) or "none"
        raise DataError(
            f"{where}: neither envhub's layout (tests, with entry or language) nor HumanEval's (entry_point) nor MBPP's "
            f"(test_list); it has {have}"
        )
    _parse(program, where)
    if not entry:
        raise DataError(f"{where}: the first test calls no function")
    preamble = _preamble(row["prompt"], entry) if "entry_point" in row else ""
    info = {
        "entry": entry,
        "solution": solution if row.get("canonical_solution") or row.get("code") else "",
        "cases": cases,
        "program": "" if cases else program,
        "preamble": preamble,
    }
    return Task(prompt, None, info, id=str(row.get("task_id", f"{path.stem}:{line}")))


def _preamble(prompt: str, entry: str) -> str:
    """What a prompt defines beside the function that is asked for: imports, helpers, constants."""
    nodes = ast.parse(f"{prompt}\n    pass\n").body
    return "\n".join(ast.unparse(node) for node in nodes if getattr(node, "name", None) != entry)


def _parse(source: str, where: str, what: str = "tests are") -> None:
    try:
        ast.parse(source)
    except SyntaxError as problem:
        raise DataError(f"{where}: the {what} no Python: {problem.msg}") from None


def _called(assertion: str) -> str:
    """The first function that an assertion calls and that is no builtin."""
    for name in re.findall(r"([A-Za-z_]\w*)\s*\(", assertion):
        if not hasattr(builtins, name) and not keyword.iskeyword(name) and name != "isclose":
            return str(name)
    return ""


def _plain_cases(tests: Sequence[str], entry: str) -> list[str]:
    """Assertions of the form `f(literal, …) == literal` as the text of (arguments, value) literals.

    Empty when one is of another form, or holds a value that a sandbox does not hand over.
    """
    cases = []
    for test in tests:
        try:
            statement = ast.parse(test.strip()).body[0]
            assert isinstance(statement, ast.Assert)
            comparison = statement.test
            assert isinstance(comparison, ast.Compare) and isinstance(comparison.ops[0], ast.Eq)
            call = comparison.left
            assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == entry
            assert not call.keywords and len(comparison.comparators) == 1
            pair = tuple(ast.literal_eval(item) for item in call.args), ast.literal_eval(comparison.comparators[0])
            assert is_plain(pair)
            cases.append(repr(pair))
        except (AssertionError, SyntaxError, ValueError, TypeError, IndexError, MemoryError, RecursionError):
            return []
    return cases
