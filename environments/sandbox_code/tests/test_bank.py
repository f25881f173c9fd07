import builtins
import copy
import json
import re
from random import Random
from typing import Any

import pytest

from envhub.environments.sandbox_code.bank import BankTask, Level, args, expected, integer, load_bank

BANK = load_bank()
per_task = pytest.mark.parametrize("task", BANK, ids=lambda task: task.id)


def drawn(task: BankTask, count: int) -> list[tuple[Any, ...]]:
    rng = Random(7)
    return [task.draw(rng) for _ in range(count)]


def test_bank_has_enough_tasks_on_every_level() -> None:
    counts = [sum(task.level == level for task in BANK) for level in range(1, 7)]
    assert all(count >= least for count, least in zip(counts, (45, 35, 30, 20, 20, 15), strict=True)), counts
    assert len(BANK) >= 150


def test_levels_appear_in_order() -> None:
    assert [task.level for task in BANK] == sorted(task.level for task in BANK)


def test_ids_and_names_are_unique_and_hide_no_builtin() -> None:
    assert len({task.id for task in BANK}) == len(BANK)
    assert len({task.name for task in BANK}) == len(BANK)
    assert not [task.name for task in BANK if hasattr(builtins, task.name)]


def test_first_task_reads_as_written() -> None:
    task = BANK[0]
    assert task.id == "L1/add"
    assert task.signature == "def add(a: int, b: int) -> int:"
    assert task.description == "Return the sum of a and b."
    assert task.solution == "def add(a: int, b: int) -> int:\n    return a + b\n"


@per_task
def test_solution_alone_gives_what_the_reference_gives(task: BankTask) -> None:
    namespace: dict[str, Any] = {}
    exec(task.solution, namespace)
    for arguments in [*task.cases, *drawn(task, 5)]:
        given = copy.deepcopy(arguments)
        assert namespace[task.name](*given) == expected(task, arguments)
        assert given == arguments, "the solution changed its arguments"


@per_task
def test_values_survive_json(task: BankTask) -> None:
    for arguments in [*task.cases, *drawn(task, 5)]:
        for value in [*arguments, expected(task, arguments)]:
            assert repr(json.loads(json.dumps(value))) == repr(value)


@per_task
def test_a_constant_function_fails(task: BankTask) -> None:
    assert len(task.cases) >= 4
    for inputs in (list(task.cases), drawn(task, 40)):
        assert len({json.dumps(expected(task, arguments)) for arguments in inputs}) >= 2


@per_task
def test_task_is_stated(task: BankTask) -> None:
    assert task.description.strip()
    assert task.signature.startswith(f"def {task.name}(") and task.signature.endswith(":")
    assert "@" not in task.solution.splitlines()[0] and '"""' not in task.solution
    assert 1 <= task.examples < len(task.cases)


def test_results_named_in_descriptions_are_right() -> None:
    named = 0
    for task in BANK:
        call = rf"{task.name}(\(.*?\))\s+is\s+(\"[^\"]*\"|\[[^]]*\]|-?\d+)"
        for arguments, result in re.findall(call, task.description, re.DOTALL):
            assert eval(f"function{arguments}", {"function": task.function}) == json.loads(result), task.id
            named += 1
    assert named >= 10


@per_task
def test_draws_repeat_with_the_seed(task: BankTask) -> None:
    assert drawn(task, 5) == drawn(task, 5)


def test_expected_leaves_the_arguments_unchanged() -> None:
    level = Level(1)

    @level(cases=[([1],), ([2],)], draw=args(integer()))
    def grow(items: list[int]) -> list[int]:
        """Return items with 0 added."""
        items.append(0)
        return items

    arguments = ([1],)
    assert expected(level.tasks[0], arguments) == [1, 0]
    assert arguments == ([1],)


def test_task_without_docstring_is_refused() -> None:
    with pytest.raises(ValueError, match="'silent' has no docstring"):

        @Level(1)(cases=[(1,)], draw=args(integer()))
        def silent(n: int) -> int:
            return n


def test_more_examples_than_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="examples is 2"):
        Level(1)(cases=[(1,)], draw=args(integer()), examples=2)
