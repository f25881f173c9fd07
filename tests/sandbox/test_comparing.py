"""What tasks declare a right answer to be."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import Comparison, default_sandbox, grade_function, grade_program, same_value

NUMBERS = st.one_of(st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, 1.0, -1.0, math.nan]), st.text(max_size=1))
ITEMS = st.lists(NUMBERS | st.tuples(NUMBERS, NUMBERS) | st.lists(NUMBERS, max_size=2), max_size=6)


async def right(declared: Any, expected: Any, actual: str) -> bool:
    """Whether a function that returns `actual`, given as source, is right."""
    report = await grade_function(
        default_sandbox(), f"def f():\n    return {actual}", "f", [([], expected)], comparison=Comparison.of(declared)
    )
    return report.all_passed


@given(ITEMS, st.randoms(use_true_random=False))
def test_an_order_that_does_not_count_keeps_types_and_counts(items: list[Any], rng: random.Random) -> None:
    unordered = Comparison(kind="unordered")
    mixed = rng.sample(items, len(items))
    same = same_value(items, items)  # but for NaN
    assert unordered._same_value(items, mixed) is same
    assert not unordered._same_value(items, tuple(mixed))
    assert not unordered._same_value(items, [*mixed, 0])
    if items:
        assert not unordered._same_value(items, mixed[1:])


@given(st.sets(st.integers(0, 3) | st.booleans() | st.floats(0, 3)), st.sets(st.integers(0, 3) | st.booleans()))
def test_sets_are_the_same_where_their_items_are_of_types_too(first: set[Any], second: set[Any]) -> None:
    typed = [{(type(item), item) for item in items} for items in (first, second)]
    assert same_value(first, second) is (typed[0] == typed[1])
    assert same_value(first, set(first)) and not same_value(first, frozenset(first))


@pytest.mark.parametrize(
    ("declared", "expected", "actual", "verdict"),
    [
        ("exact", [1, 2], "[1, 2]", True),
        (None, [1, 2], "[2, 1]", False),
        ("unordered", [1, 2, 2], "[2, 1, 2]", True),
        ("unordered", [1, 2, 2], "[2, 1, 1]", False),
        ("unordered", [1, 2], "[1, True]", False),
        ("unordered", [1, 2], "{1, 2}", False),
        ("unordered", 5, "5", True),
        ({"kind": "close", "tolerance": 1e-3}, [0.5, 1e6], "[0.5004, 1e6 + 500]", True),
        ({"kind": "close", "tolerance": 1e-3}, 0.5, "0.502", False),
        ({"kind": "close", "tolerance": 1e-3}, 1.0, "1", False),
        ({"kind": "close", "tolerance": 1e9}, 1.0, "float('nan')", False),
        ("any", [[1, 3], [2, 2]], "[2, 2]", True),
        ("any", [[1, 3], [2, 2]], "[[1, 3], [2, 2]]", False),
        ("exact", {1, 2}, "{2, 1}", True),
        ("exact", {1, 0}, "{True, False}", False),
        ("exact", b"x", "b'x'", True),
    ],
)
async def test_a_value_is_right_as_its_task_says(declared: Any, expected: Any, actual: str, verdict: bool) -> None:
    assert await right(declared, expected, actual) is verdict


FACTORS = """
def check(given, expected, actual):
    [number] = given
    if type(actual) is not list or len(actual) < 2 or not all(type(x) is int and x > 1 for x in actual):
        return False
    product = 1
    for x in actual:
        product *= x
    return product == number
"""


@pytest.mark.parametrize(
    ("body", "passed"),
    [
        ("[2, n // 2]", 2), ("[n]", 0), ("[3, 4] if n == 12 else [5]", 1), ("AnyEqual()", 0), ("(2, n // 2)", 0),
    ],
)  # fmt: skip
async def test_a_checker_judges_in_a_box_of_its_own(body: str, passed: int) -> None:
    source = f"class AnyEqual(list):\n    def __eq__(self, other): return True\n\ndef f(n):\n    return {body}"
    comparison = Comparison(kind="checker", checker=FACTORS)
    report = await grade_function(default_sandbox(), source, "f", [([12], None), ([20], None)], comparison=comparison)
    assert report.passed == passed, report


@pytest.mark.parametrize(
    ("checker", "said"),
    [
        ("def check(given, expected, actual): return 1", "it returned 1, which is neither True nor False"),
        ("def check(given, expected, actual): return 1 / 0", "ZeroDivisionError"),
        ("def chekc(): pass", "defines no function 'check'"),
        ("def check(", "SyntaxError"),
    ],
)
async def test_a_checker_that_fails_is_a_fault_and_no_wrong_answer(checker: str, said: str) -> None:
    with pytest.raises(EnvironmentFault, match=said):
        await right({"kind": "checker", "checker": checker}, 1, "1")


@pytest.mark.parametrize(
    ("declared", "expected", "printed", "verdict"),
    [
        ("exact", "a\nb\n", "a  \r\nb", True),
        ("exact", "a\nb\n", "b\na", False),
        ("unordered", "a\nb\nb", "b\na\nb", True),
        ("unordered", "a\nb\nb", "b\na\na", False),
        ("any", ["1 3", "2 2"], "2 2\n", True),
        ("any", ["1 3", "2 2"], "1 3\n2 2", False),
        ({"kind": "close", "tolerance": 1e-2}, "x 0.50 7", "x 0.501 7", True),
        ({"kind": "close", "tolerance": 1e-2}, "x 0.50 7", "y 0.501 7", False),
        ({"kind": "close", "tolerance": 1e-2}, "1.0", "nan", False),
        ({"kind": "close", "tolerance": 1e-2}, "1.0", "1.0 1.0", False),
        ({"kind": "close", "tolerance": 1e-2}, "1.0", "1_0e-1", False),
        ({"kind": "checker", "checker": "def check(given, expected, actual):\n    return actual.strip() == given[::-1]"},
         "", "cba", True),
    ],
)  # fmt: skip
async def test_an_output_is_right_as_its_task_says(declared: Any, expected: Any, printed: str, verdict: bool) -> None:
    report = await grade_program(
        default_sandbox(), f"print({printed!r})", [("abc", expected)], comparison=Comparison.of(declared)
    )
    assert report.all_passed is verdict


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("exactly", "kind is one of exact, close, unordered, any, checker, not 'exactly'; did you mean 'exact'"),
        ("close", "tolerance belongs to the kind close, which needs it"),
        ({"kind": "exact", "tolerance": 1}, "tolerance belongs to the kind close"),
        ({"kind": "close", "tolerance": -1}, "tolerance: "),
        ({"kind": "close", "tolerance": math.nan}, "tolerance: "),
        ("checker", "checker, a source that defines check"),
        ({"kind": "exact", "same": 1}, "same: "),
        (7, "a task declares no comparison"),
    ],
)
def test_a_declaration_that_is_none_is_named(declared: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Comparison.of(declared)


async def test_a_task_of_several_answers_has_some() -> None:
    with pytest.raises(UserError, match="expects a list of right ones, not 5"):
        await right("any", 5, "5")
