"""Comparing values and outputs, and the report of a grading."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhub.errors import EnvironmentFault
from envhub.sandbox import (
    ProcessSandbox,
    RunOutcome,
    SandboxLimits,
    grade_by_tests,
    grade_function,
    grade_program,
    same_output,
    same_value,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@given(PLAIN)
def test_a_value_is_the_same_as_itself_and_not_as_its_wrapping(value: object) -> None:
    assert same_value(value, value)
    assert not same_value(value, [value]) and not same_value((value,), [value])


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, True), (0, False), (1, 1.0), (1.0, 1), ("1", 1), (None, False), ([1], (1,)), ((1,), [1]),
        ([1, 2], [1]), ([1], [1, 2]), ([[1]], [[True]]), ({"a": 1}, {"a": True}), ({"a": 1}, {"a": 1, "b": 2}),
        ({1: 1}, {True: 1}), ({1: 1}, {1.0: 1}), ({(1,): 1}, {(True,): 1}), (math.nan, math.nan),
        (math.inf, math.inf), (1.0, 1.0 + 1e-9), ([1, 2], [2, 1]), ({1}, {True}), ({1}, frozenset({1})),
    ],
)  # fmt: skip
def test_different_values(expected: object, actual: object) -> None:
    assert not same_value(expected, actual)


def test_a_tolerance_is_for_floats_only() -> None:
    assert same_value([1.0, 1e6], [1.0 + 1e-7, 1e6 + 0.5], tolerance=1e-6)
    assert not same_value(1.0, 1.1, tolerance=1e-6)
    assert not same_value(1.0, 1, tolerance=1.0)
    assert not same_value(1, 2, tolerance=10.0)
    assert not same_value(1.0, math.nan, tolerance=math.inf)


def test_an_object_that_equals_everything_is_not_the_same() -> None:
    class Any(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    assert not same_value(1, Any(1))


@pytest.mark.parametrize("actual", ["3\n12\n", "3\n12", "3 \r\n12\t\r\n\n\n", "3\n12\n \n"])
def test_blanks_at_the_end_do_not_count(actual: str) -> None:
    assert same_output("3\n12\n", actual)


@pytest.mark.parametrize(
    "actual", ["", "3\n", "3\n12\njunk\n", "3 12\n", " 3\n12\n", "3\n\n12\n", "3\r12\n", "3.0\n12"]
)
def test_different_outputs(actual: str) -> None:
    assert not same_output("3\n12\n", actual)


async def test_a_report_names_the_first_failure() -> None:
    source = "def f(a):\n    if a == 3: raise ValueError('no')\n    return a if a < 2 else 0"
    tests = [([1], 1), ([2], 2), ([3], 3)]
    report = await grade_function(ProcessSandbox(), source, "f", tests)
    assert (report.passed, report.total, report.all_passed) == (1, 3, False)
    assert report.outcomes == {"passed": 1, "wrong": 1, "error": 1}
    failure = report.first_failure
    assert failure is not None and failure.outcome is RunOutcome.ok
    assert (failure.index, failure.arguments, failure.expected, failure.got) == (1, "[2]", "2", "0")


async def test_a_long_answer_is_shortened_in_the_report() -> None:
    report = await grade_function(ProcessSandbox(), "def f(): return 'x' * 10000", "f", [((), "y")])
    assert report.first_failure is not None and len(report.first_failure.got) < 1000


async def test_no_tests_are_no_pass() -> None:
    assert not (await grade_function(ProcessSandbox(), "def f(): pass", "f", [])).all_passed
    assert not (await grade_program(ProcessSandbox(), "", [])).all_passed


async def test_a_right_output_needs_exit_code_zero() -> None:
    report = await grade_program(ProcessSandbox(), "print(3)\nraise SystemExit(1)", [("", "3\n")])
    assert report.outcomes == {"error": 1} and report.first_failure is not None
    assert report.first_failure.got == "'3\\n'"


async def test_a_program_that_hits_a_limit_is_not_run_again() -> None:
    limits = SandboxLimits(wall_seconds=0.5)
    report = await grade_program(ProcessSandbox(), "while True: pass", [("", "1")] * 100, limits)
    assert report.outcomes == {"timeout": 100}


async def test_tests_and_their_submission_need_one_turn_together() -> None:
    sandbox = ProcessSandbox(concurrency=1)
    right, wrong = "def f(a): return a + 1", "def f(a): return a"
    tests = "assert f(1) == 2\nassert f(2) == 3"
    reports = await asyncio.gather(*(grade_by_tests(sandbox, source, "f", tests) for source in (right, wrong, right)))
    assert [report.outcomes for report in reports] == [{"passed": 1}, {"wrong": 1}, {"passed": 1}]
    failure = reports[1].first_failure
    assert failure is not None and failure.error == "assert f(1) == 2: AssertionError"


async def test_tests_that_are_no_python_are_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match="the tests are no Python"):
        await grade_by_tests(ProcessSandbox(), "def f(): pass", "f", "assert f( ==")
