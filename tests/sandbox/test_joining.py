"""One program put before another."""

import ast

import pytest

from envhub.sandbox import ProcessSandbox, RunOutcome, joined

FUTURE = "from __future__ import annotations\n"
SECONDS = [
    "x: Nowhere = 1\n",
    FUTURE + "x: Nowhere = 1\n",
    "'''Text\nof two lines'''\n" + FUTURE + "x: Nowhere = 1",
    "from __future__ import (\n  annotations,\n); x = 1\nassert x",
    "é = 1\nx = é\n",
    "",
]


@pytest.mark.parametrize("first", ["import math", FUTURE + "import math\n", '"""About."""\n' + FUTURE + "math = 1"])
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_both_programs_run_and_the_second_keeps_its_lines(first: str, second: str, end: str) -> None:
    source = joined(first, second.replace("\n", end))
    lazy = FUTURE in first or "annotations" in second or "Nowhere" not in second
    names: dict[str, object] = {} if lazy else {"Nowhere": int}
    exec(compile(source, "joined", "exec", dont_inherit=True), names)
    assert "math" in names and (not second or names["x"] == 1)
    shift = len(source.split("\n")) - len(second.split("\n"))
    before = [node.lineno for node in ast.parse(second).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    after = [node.lineno - shift for node in ast.parse(source).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    assert after[-len(before) :] == before or not before


@pytest.mark.parametrize("second", ["x = (", "x = 1\n" + FUTURE, "\0", "(" * 5000])
def test_what_is_no_python_stays_alone(second: str) -> None:
    assert joined("import math", second) == second
    assert joined("", second) == second


async def test_tests_with_a_future_import_may_rely_on_the_standard_library() -> None:
    tests = FUTURE + "def check(g: Nowhere): assert g(1) == math.floor(1.5)\ncheck(f)"
    result = await ProcessSandbox(concurrency=2).check("def f(x): return x", "f", tests)
    assert (result.outcome, result.value) == (RunOutcome.ok, True), result.error
