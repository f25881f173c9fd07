"""Data files in envhub's own layout: functions and programs, how they compare, and rows that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from envhub.cli.app import run as cli
from envhub.environments.sandbox_code import SandboxCodeEnvironment
from envhub.environments.sandbox_code.answers import program
from envhub.errors import DataError

DOUBLE = {
    "prompt": "Twice n.",
    "entry": "twice",
    "tests": [[[1], 2], [[-3], -6]],
    "solution": "def twice(n): return 2 * n",
}
ECHO = {
    "prompt": "Print what comes in, in capitals.", "language": "python", "tests": [["a\n", "A\n"], ["b c", "B C"]],
    "examples": [["x", "X"]], "solution": "print(input().upper())",
}  # fmt: skip


def environment(tmp_path: Path, *rows: Any, **config: Any) -> SandboxCodeEnvironment:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return SandboxCodeEnvironment({"data": str(file), "eval_fraction": 1.0, **config})


async def played(made: SandboxCodeEnvironment, answer: str) -> tuple[str, float, dict[str, Any]]:
    task = made.tasks.get("eval", 0)
    await made.reset(options={"task": task})
    observation, reward, _, _, info = await made.step(answer)
    return str(observation), reward, info


STACK = {
    "prompt": "A stack with push and pop.", "module": "stack", "solution": "class Stack(list):\n    push = list.append",
    "unit_tests": "from stack import Stack\n\ndef test_push():\n    s = Stack()\n    s.push(3)\n    assert s.pop() == 3\n\n"
    "def test_empty():\n    assert len(Stack()) == 0\n",
}  # fmt: skip


async def test_a_unit_test_that_fails_is_told(tmp_path: Path) -> None:
    observation, reward, info = await played(
        environment(tmp_path, STACK), "```python\nclass Stack(list):\n    def push(self, x): pass\n```"
    )
    assert reward == 0.25 and info["tests"] == {"passed": 1, "wrong": 1}
    assert "A test failed: test_push: IndexError: pop from empty list. Write the whole module again" in observation


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"unit_tests": "def test(:"}, "'unit_tests' are no Python"),
        ({"module": "a-b"}, "'module' is a name that can be imported"),
        ({"tests": []}, "leave out 'tests'"),
        ({"prompt": ""}, "no column 'prompt'"),
    ],
)
def test_a_row_of_unit_tests_that_is_none_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=f"line 1: .*{said}"):
        _ = environment(tmp_path, {**STACK, **change}).tasks


@pytest.mark.parametrize("row", [DOUBLE, STACK, ECHO, {**ECHO, "language": "bash", "solution": "read x; echo ${x^^}"}])
async def test_the_oracle_earns_all_and_a_wrong_answer_its_share(tmp_path: Path, row: dict[str, Any]) -> None:
    made = environment(tmp_path, row)
    await made.reset(options={"task": made.tasks.get("eval", 0)})
    answer = made.oracle()
    assert isinstance(answer, str)
    assert (await played(made, answer))[1] == 1.0
    observation, reward, info = await played(made, "```\nx\n```")
    assert reward == 0.0 or info["tests"].keys() <= {"error", "exited"}
    assert "again, corrected" in observation


async def test_a_prompt_shows_the_examples_and_no_hidden_test(tmp_path: Path) -> None:
    made = environment(tmp_path, ECHO)
    observation, _ = await made.reset(options={"task": made.tasks.get("eval", 0)})
    text = "".join(message.text for message in made.messages)
    assert "Write this Python program, which reads stdin and writes stdout" in text
    assert "Example input:\nx\n\nExample output:\nX" in text and "B C" not in text


async def test_a_program_that_prints_something_else_is_told_so(tmp_path: Path) -> None:
    observation, reward, info = await played(environment(tmp_path, ECHO), "```python\nprint('A')\n```")
    assert "For the input 'b c' it printed 'A\\n', expected 'B C'." in observation
    assert (reward, info["tests"]) == (0.25, {"passed": 1, "wrong": 1})


async def test_a_program_that_fails_is_told_how(tmp_path: Path) -> None:
    row = {**ECHO, "language": "c", "solution": ""}
    observation, reward, _ = await played(environment(tmp_path, row), "```c\nint main(void) { return x; }\n```")
    assert reward == 0.0 and "it failed: syntax error. main.c:" in observation and "undeclared" in observation


@pytest.mark.parametrize(
    ("comparison", "answer", "reward"),
    [
        ("unordered", "def f(n): return [n, 2, 1]", 1.0),
        ("exact", "def f(n): return [n, 2, 1]", 0.1),
        ({"kind": "checker", "checker": "def check(given, expected, actual): return sum(actual) == sum(expected)"},
         "def f(n): return [n + 3]", 1.0),
    ],
)  # fmt: skip
async def test_a_task_says_how_values_compare(tmp_path: Path, comparison: Any, answer: str, reward: float) -> None:
    row = {"prompt": "x", "entry": "f", "tests": [[[3], [1, 2, 3]], [[4], [1, 2, 4]]], "comparison": comparison}
    assert (await played(environment(tmp_path, row), answer))[1] == reward


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tests": []}, "'tests' has no test"),
        ({"tests": [[[1]]]}, "'tests' is a list of pairs"),
        ({"tests": [[1, 2]]}, "the first of a pair is the list of arguments, not 1"),
        ({"tests": [[[1], 2], [[1], 3]]}, r"two tests of \[1\] expect different things"),
        ({"examples": [[[1], 2], [[-3], -6]]}, "every hidden test is among the examples"),
        ({"language": "c"}, "give one of them"),
        ({"entry": "a b"}, "'entry' is the name of a function, not 'a b'"),
        ({"prompt": " "}, "no column 'prompt'"),
        ({"prompt": 5}, "'prompt' is a text, not 5"),
        ({"comparison": "similar"}, "kind is one of exact"),
        ({"comparison": "any"}, "expects a list of right ones, not 2"),
        ({"test": "x"}, "unknown key 'test'"),
    ],
)
def test_a_row_that_is_none_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=f"line 2: .*{said}"):
        _ = environment(tmp_path, DOUBLE, {**DOUBLE, **change}).tasks


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"language": "cobol"}, "'language' is one of python, javascript"),
        ({"tests": [[["a"], "A"]]}, r"the first of a pair is the input, a text, not \['a'\]"),
        ({"tests": [["a", 1]]}, "what a program is to print is a text, not 1"),
    ],
)
def test_a_row_of_a_program_that_is_none_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=f"line 1: .*{said}"):
        _ = environment(tmp_path, {**ECHO, **change}).tasks


@pytest.mark.parametrize(
    ("text", "language", "found"),
    [
        ("int main() {}", "c", "int main() {}"),
        ("So:\n```c\nint x;\n```\nand\n```text\noutput\n```", "c", "int x;"),
        ("```bash\nls\n```\n```bash\npwd\n```", "bash", "pwd"),
        ("```\nls\n```", "bash", "ls"),
        ("```c++\nint y;", "cpp", "int y;"),
        ("```js\r\nx\r\n```", "javascript", "x"),
    ],
)
def test_the_program_of_an_answer_is_found(text: str, language: str, found: str) -> None:
    assert program(text, language) == found


def test_a_solution_that_fails_its_own_tests_is_found_by_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**DOUBLE, "solution": "def twice(n): return 3 * n"}) + "\n" + json.dumps(STACK) + "\n")
    assert cli(["check", "sandbox_code", "--config", f"data={file}"]) == 1
    assert "the oracle does not solve task 'rows:1': its reward is 0.1" in capsys.readouterr().out
