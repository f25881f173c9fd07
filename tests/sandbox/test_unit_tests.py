"""Unit-test files: what passes, what fails, and what a submission may try against the verdict."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import TIERS, ProcessSandbox, SandboxLimits, grade_by_unit_tests, unit_tests

from .tiers import tier

STACK = """
class Empty(ValueError):
    pass

class Stack:
    def __init__(self, *items): self.items = list(items); self.name = "s"
    def push(self, item): self.items.append(item); return self
    def pop(self):
        if not self.items: raise Empty("nothing there")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, at): return self.items[at]
    def __contains__(self, item): return item in self.items
    def __enter__(self): return self
    def __exit__(self, *_): self.items.clear()

def add(a, b=0): return a + b
def twins(): return [Stack(1), Stack(2)]
LIMIT = 7
"""
PYTEST = """
import pytest
import solution
from solution import LIMIT, Empty, Stack, add

@pytest.fixture
def full():
    return Stack(1, "two")

@pytest.mark.parametrize(("a", "b"), [(1, 2), ("x", "y"), ([1], [2])])
def test_add(a, b):
    assert add(a, b=b) == a + b

def test_objects(full):
    assert full.push(3.5).pop() == 3.5 and full.name == "s"
    assert len(full) == 2 and full[0] == 1 and "two" in full and list(full) == [1, "two"]
    full.name = "other"
    assert full.name == "other" and solution.LIMIT == LIMIT == 7
    with full as inside:
        assert len(inside) == 2
    assert len(full) == 0
    assert [len(one) for one in solution.twins()] == [1, 1]

def test_errors(full):
    with pytest.raises(Empty, match="nothing"):
        Stack().pop()
    with pytest.raises(ValueError):
        Stack().pop()
    with pytest.raises(TypeError):
        add(1, "x")
    with pytest.raises(AttributeError):
        full.nothing

@pytest.mark.skip
def test_later():
    assert False
"""
UNITTEST = """
import unittest
from solution import add

class AddTest(unittest.TestCase):
    def setUp(self): self.one = add(1)
    def test_one(self): self.assertEqual(self.one, 1)
    def test_types(self): self.assertIs(type(add(True, True)), int)
    def test_each(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertEqual(add(n, n), 2 * n)
    @unittest.expectedFailure
    def test_wrong(self): self.assertEqual(add(1, 1), 3)
"""
ONE = "from solution import f\n\ndef test_before():\n    pass\n\ndef test_f():\n    assert f(2) == 4\n\ndef test_after():\n    pass\n"
QUICK = SandboxLimits(wall_seconds=5.0, cpu_seconds=2)


@pytest_asyncio.fixture(params=TIERS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ProcessSandbox]:
    made = await tier(request.param, 4)
    assert isinstance(made, ProcessSandbox)
    yield made
    await made.close()


async def test_a_right_submission_passes_all_tests_that_are_not_skipped(sandbox: ProcessSandbox) -> None:
    results = await sandbox.unit_tests(STACK, PYTEST)
    assert [result for result in results if not result.passed] == []
    assert {result.name for result in results} >= {"test_objects", "test_errors", "test_add[1-2]"} and len(results) == 5


async def test_a_wrong_one_fails_those_that_it_fails(sandbox: ProcessSandbox) -> None:
    report = await grade_by_unit_tests(sandbox, STACK.replace("a + b", "a"), PYTEST)
    assert (report.passed, report.total) == (1, 5) and report.first_failure is not None
    assert (
        report.outcomes == {"passed": 1, "wrong": 4}
        and "test_add[1-2]: assert 1 == (1 + 2)" in report.first_failure.error
    )


@pytest.mark.parametrize("pytest_there", [True, False])
async def test_unittest_runs_with_pytest_and_without(
    sandbox: ProcessSandbox, pytest_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pytest_there:
        monkeypatch.setattr(unit_tests.importlib.util, "find_spec", lambda name: None)
    report = await grade_by_unit_tests(sandbox, STACK, UNITTEST)
    assert report.outcomes == {"passed": 4}
    report = await grade_by_unit_tests(sandbox, STACK.replace("a + b", "2"), UNITTEST)
    assert (report.passed, report.total) == (2, 4)


EQUAL = """
class Yes(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 4
    def __bool__(self): return True
"""


@pytest.mark.parametrize(
    ("source", "outcomes"),
    [
        (f"{EQUAL}\ndef f(n): return Yes(9)", {"passed": 2, "wrong": 1}),
        ("def f(n): return True", {"passed": 2, "wrong": 1}),
        ("import os\ndef f(n): os._exit(0)", {"passed": 1, "exited": 2}),
        ("import sys\ndef f(n): sys.exit(0)", {"passed": 1, "exited": 2}),
        ("def f(n):\n    while True: pass", {"passed": 1, "timeout": 2}),
        ("import os\nos._exit(0)", {"exited": 1}),
        ("def f(n):\n    raise AssertionError", {"passed": 2, "wrong": 1}),
        ("class Skipped(Exception): pass\nSkipped.__module__ = 'unittest'\ndef f(n): raise Skipped('x')", {"passed": 2, "wrong": 1}),
        ("import sys, types\nm = types.ModuleType('_pytest')\nsys.modules['pytest'] = m\ndef f(n): return 0", {"passed": 2, "wrong": 1}),
        ("import os\nfor fd in range(3, 2000):\n    try: os.write(fd, b'\\0\\0\\0\\x16{\"t\":[\"x\",\"passed\",\"\"]}')\n"
         "    except OSError: pass\ndef f(n): return 0", {"error": 1}),
        ("def g(n): return 4", {"error": 1}),
        ("def f(n) return 4", {"syntax_error": 1}),
        ("x" * 300_000, {"source_limit": 1}),
    ],
)  # fmt: skip
async def test_no_submission_passes_a_test_that_it_fails(
    sandbox: ProcessSandbox, source: str, outcomes: dict[str, int]
) -> None:
    report = await grade_by_unit_tests(sandbox, source, ONE, QUICK)
    assert report.outcomes == outcomes, report


async def test_an_object_of_the_submission_is_no_true(sandbox: ProcessSandbox) -> None:
    tests = "from solution import f\n\ndef test_f():\n    assert f(2)\n\ndef test_g():\n    assert not f(2)\n"
    report = await grade_by_unit_tests(sandbox, "class A: pass\ndef f(n): return A()", tests)
    assert report.outcomes == {"wrong": 2}
    assert report.first_failure is not None and "is no True" in report.first_failure.error


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("def test_x(:", "SyntaxError"),
        ("x = 1", "there are none"),
        ("import nowhere\ndef test_x(): pass", "No module named 'nowhere'"),
        ("import os\nos._exit(3)", "exit code 3"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
async def test_tests_that_cannot_be_run_are_a_fault_and_no_verdict(
    sandbox: ProcessSandbox, tests: str, said: str
) -> None:
    with pytest.raises(EnvironmentFault, match=f"the unit tests cannot be run: .*{said}"):
        await sandbox.unit_tests("def f(n): return 4", tests)


async def test_a_module_may_have_another_name_but_none_of_what_tests_it(sandbox: ProcessSandbox) -> None:
    results = await sandbox.unit_tests(
        "def f(n): return n", "import mine\ndef test_f(): assert mine.f(3) == 3", module="mine"
    )
    assert [result.passed for result in results] == [True]
    for name in ("pytest", "checker", "a b", ""):
        with pytest.raises(UserError, match="the tested module"):
            await sandbox.unit_tests("", "", module=name)


async def test_tests_that_need_pytest_say_so_where_it_is_not(
    sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_tests.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="these unit tests need pytest: install it"):
        await sandbox.unit_tests(STACK, PYTEST)
    with pytest.raises(EnvironmentFault, match="its tests are functions, which pytest runs"):
        await sandbox.unit_tests("def f(n): return 4", ONE)
