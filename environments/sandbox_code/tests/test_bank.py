import bisect
import builtins
import copy
import csv
import fnmatch
import heapq
import inspect
import itertools
import json
import math
import re
import textwrap
from collections import Counter
from random import Random
from typing import Any

import pytest

from envhub.environments.sandbox_code.bank import BankTask, Level, args, expected, integer, load_bank

BANK = load_bank()
per_task = pytest.mark.parametrize("task", BANK, ids=lambda task: task.id)


def next_arrangement(numbers: list[int]) -> list[int]:
    arrangements = sorted(set(itertools.permutations(numbers)))
    return list(arrangements[(arrangements.index(tuple(numbers)) + 1) % len(arrangements)])


def subsequences(items: Any) -> list[tuple[Any, ...]]:
    return [chosen for size in range(len(items) + 1) for chosen in itertools.combinations(items, size)]


def steps_between(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    if a[0] == b[0]:
        return steps_between(a[1:], b[1:])
    return 1 + min(steps_between(a[1:], b), steps_between(a, b[1:]), steps_between(a[1:], b[1:]))


def coins_by_count(coins: list[int], amount: int) -> int | None:
    reached, count = {0}, 0
    while reached and amount not in reached:
        reached = {total + coin for total in reached for coin in coins if total + coin <= amount}
        count += 1
    return count if reached else None


def load_by_subsets(weights: list[int], values: list[int], capacity: int) -> int:
    loads: list[tuple[tuple[int, int], ...]] = subsequences(list(zip(weights, values, strict=True)))
    return max(sum(v for _, v in load) for load in loads if sum(w for w, _ in load) <= capacity)


def groups_by_merging(n: int, friends: list[list[int]]) -> int:
    groups = [{i} for i in range(n)]
    for pair in friends:
        met = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in met] + [set().union(*met)]
    return len(groups)


def covered(intervals: list[list[int]]) -> list[list[int]]:
    halves = {2 * start + i for start, end in intervals for i in range(2 * (end - start) + 1)}
    starts = sorted(h for h in halves if h - 1 not in halves)
    return [[a // 2, b // 2] for a, b in zip(starts, sorted(h for h in halves if h + 1 not in halves), strict=True)]


INDEPENDENT: dict[str, Any] = {
    "best_load": load_by_subsets,
    "binary_to_number": lambda s: int(s, 2),
    "can_split": lambda s, words: bool(words and re.fullmatch(f"(?:{'|'.join(words)})*", s)) or s == "",
    "common_elements": lambda a, b: sorted((Counter(a) & Counter(b)).elements()),
    "count_groups": groups_by_merging,
    "count_down_from": lambda n: list(reversed(range(1, n + 1))),
    "digital_root": lambda n: (n - 1) % 9 + 1 if n else 0,
    "edit_distance": steps_between,
    "evaluate_expression": lambda s: eval(s),
    "factorial": math.factorial,
    "fewest_coins": coins_by_count,
    "greatest_common_divisor": math.gcd,
    "has_duplicates": lambda numbers: any(numbers.count(n) > 1 for n in numbers),
    "insertion_index": bisect.bisect_left,
    "largest_stretch_sum": lambda ns: max(sum(ns[i:j]) for i in range(len(ns)) for j in range(i + 1, len(ns) + 1)),
    "least_common_multiple": math.lcm,
    "letter_counts": lambda s: dict(Counter(s.replace(" ", ""))),
    "longest_common_subsequence": lambda a, b: max(map(len, set(subsequences(a)) & set(subsequences(b)))),
    "longest_increasing_subsequence": lambda ns: max(len(c) for c in subsequences(ns) if sorted(set(c)) == list(c)),
    "longest_run": lambda s: max((len(list(run)) for _, run in itertools.groupby(s)), default=0),
    "matches_pattern": lambda pattern, s: fnmatch.fnmatchcase(s, pattern),
    "merge_intervals": covered,
    "merge_sorted": lambda a, b: sorted(a + b),
    "next_permutation": next_arrangement,
    "number_of_digits": lambda n: next(k for k in itertools.count(1) if n < 10**k),
    "number_to_binary": lambda n: f"{n:b}",
    "parse_csv_line": lambda line: next(csv.reader([line]), []) or [""],
    "pascal_row": lambda n: [math.comb(n, k) for k in range(n + 1)],
    "primes_up_to": lambda n: [p for p in range(2, n + 1) if all(p % d for d in range(2, p))],
    "product": math.prod,
    "round_down_to_ten": lambda n: n - n % 10,
    "run_length_encode": lambda s: "".join(f"{len(list(run))}{c}" for c, run in itertools.groupby(s)),
    "running_max": lambda numbers: list(itertools.accumulate(numbers, max)),
    "running_sum": lambda numbers: list(itertools.accumulate(numbers)),
    "second_largest": lambda numbers: heapq.nlargest(2, numbers)[1],
    "sorted_different": lambda numbers: [n for n in range(10) if n in numbers],
    "spread_of_three": lambda a, b, c: max(abs(a - b), abs(b - c), abs(a - c)),
    "squeeze": lambda s: "".join(c for c, _ in itertools.groupby(s)),
    "sum_up_to": lambda n: n * (n + 1) // 2,
    "tens_digit": lambda n: int(f"{n:02}"[-2]),
    "wrap_words": lambda s, width: textwrap.wrap(s, width, break_long_words=False),
}


def drawn(task: BankTask, count: int) -> list[tuple[Any, ...]]:
    rng = Random(7)
    return [task.draw(rng) for _ in range(count)]


def outcome(task: BankTask, arguments: tuple[Any, ...]) -> str:
    try:
        return repr(expected(task, arguments))
    except (IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        return type(error).__name__


def test_bank_has_enough_tasks_on_every_level() -> None:
    counts = [sum(task.level == level for task in BANK) for level in range(1, 7)]
    assert all(count >= least for count, least in zip(counts, (180, 35, 30, 20, 20, 15), strict=True)), counts
    assert len(BANK) >= 300


def test_levels_appear_in_order() -> None:
    assert [task.level for task in BANK] == sorted(task.level for task in BANK)


def test_ids_and_names_are_unique_and_hide_no_builtin() -> None:
    assert len({task.id for task in BANK}) == len(BANK)
    assert len({task.name for task in BANK}) == len(BANK)
    assert not [task.name for task in BANK if hasattr(builtins, task.name)]


def test_no_two_tasks_of_the_first_level_are_the_same() -> None:
    by_arguments: dict[str, list[BankTask]] = {}
    for task in BANK:
        if task.level == 1:
            kinds = [str(parameter.annotation) for parameter in inspect.signature(task.function).parameters.values()]
            by_arguments.setdefault(", ".join(kinds), []).append(task)
    for tasks in by_arguments.values():
        for a, b in itertools.combinations(tasks, 2):
            inputs = [*a.cases, *b.cases, *drawn(a, 40), *drawn(b, 40)]
            assert any(outcome(a, arguments) != outcome(b, arguments) for arguments in inputs), (a.id, b.id)


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


@pytest.mark.parametrize("name", INDEPENDENT)
def test_reference_agrees_with_an_independent_solution(name: str) -> None:
    [task] = [task for task in BANK if task.name == name]
    for arguments in [*task.cases, *drawn(task, 60)]:
        assert expected(task, arguments) == INDEPENDENT[name](*copy.deepcopy(arguments)), arguments


@pytest.mark.parametrize(("write", "read"), [("to_roman", "from_roman"), ("run_length_encode", "run_length_decode")])
def test_pairs_of_tasks_invert_each_other(write: str, read: str) -> None:
    tasks = {task.name: task for task in BANK}
    for (value,) in [*tasks[write].cases, *drawn(tasks[write], 60)]:
        assert expected(tasks[read], [expected(tasks[write], [value])]) == value


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
