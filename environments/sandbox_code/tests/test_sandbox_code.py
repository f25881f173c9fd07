import json
from pathlib import Path

import pytest

from envhub.environments.sandbox_code import SandboxCodeEnvironment, submission
from envhub.environments.sandbox_code.bank import LEVELS
from envhub.environments.sandbox_code.tasks import tests_of as hidden_tests
from envhub.errors import ConfigError, DataError, UserError


async def begin(split: str = "train", index: int = 0, **config: object) -> SandboxCodeEnvironment:
    environment = SandboxCodeEnvironment(config)
    await environment.reset(options={"task": environment.tasks.get(split, index)})
    return environment


def wrong_answer(environment: SandboxCodeEnvironment) -> str:
    return f"def {environment.hidden.entry}(*args):\n    return 'no such value'\n"


async def test_the_reference_solution_pays_one_and_ends():
    environment = await begin()
    observation, reward, terminated, truncated, info = await environment.step(environment.oracle())
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["components"] == {"passed": 1.0, "tests": 1.0, "well_formed": 1.0}


async def test_a_failing_test_comes_back_and_a_second_try_pays_what_it_adds():
    environment = await begin()
    observation, first, terminated, _, _ = await environment.step(wrong_answer(environment))
    assert (first, terminated) == (0.1, False)
    assert environment.hidden.entry in observation and "expected" in observation
    _, second, terminated, _, _ = await environment.step(environment.oracle())
    assert terminated and first + second == pytest.approx(0.8)


async def test_the_last_try_ends_without_solution():
    environment = await begin(tries=1)
    observation, reward, terminated, _, info = await environment.step("I do not know.")
    assert (reward, terminated, info["solved"]) == (0.0, True, False)


@pytest.mark.parametrize("text", ["", "x" * 50_000, "nan", "1e309", "\x00\x1b[2J", "def", "```python\n```", "(" * 5000])
async def test_junk_pays_nothing_and_is_answered(text: str):
    environment = await begin()
    observation, reward, terminated, _, _ = await environment.step(text)
    assert (reward, terminated) == (0.0, False)
    assert "defines no function" in observation


async def test_code_that_hangs_or_exits_costs_its_tries_only():
    environment = await begin(seconds=1.0)
    name = environment.hidden.entry
    assert (await environment.step(f"def {name}(*a):\n    while True: pass"))[1] == pytest.approx(0.1)
    assert (await environment.step(f"import os\ndef {name}(*a):\n    os._exit(0)"))[1] == 0.0


async def test_hidden_tests_hold_more_than_the_prompt_shows():
    environment = await begin()
    prompt = environment.messages[-1].text
    assert len(environment.hidden.cases) >= 8
    assert prompt.count("==") == 1
    assert "solution" not in prompt


def test_the_same_task_has_the_same_hidden_tests():
    first, second = SandboxCodeEnvironment().tasks.get("train", 3), SandboxCodeEnvironment().tasks.get("train", 3)
    assert hidden_tests(first) == hidden_tests(second)


def test_train_and_eval_share_no_task():
    tasks = SandboxCodeEnvironment(levels=LEVELS).tasks
    ids = [task.id for split in tasks.splits for task in tasks.iterate(split)]
    assert len(ids) == len(set(ids)) >= 300


def test_enough_tasks_of_the_first_level_are_held_out():
    tasks = SandboxCodeEnvironment().tasks
    assert 60 <= len(list(tasks.iterate("eval"))) < len(list(tasks.iterate("train"))) * 3 / 4


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\ndef f(): return 1\n```", "def f(): return 1"),
        ("Sure:\n```\ndef f(): return 1\n```\nUse it so:\n```python\nf()\n```", "def f(): return 1"),
        ("def f():\n    return 1", "def f():\n    return 1"),
        ("```python\ndef f(): return 1", "def f(): return 1"),
        ("```bash\nls\n```\n```py\ndef f(): return 2\n```", "def f(): return 2"),
    ],
)
def test_the_code_is_found_in_the_answer(text: str, code: str):
    assert submission(text, "f").strip() == code


HUMANEVAL = {
    "task_id": "X/0", "prompt": "from typing import List\n\ndef twice(xs: List[int]) -> List[int]:\n    \"\"\"Double.\"\"\"\n",
    "entry_point": "twice", "canonical_solution": "    return [2 * x for x in xs]\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n    assert candidate([]) == []\n",
}  # fmt: skip
MBPP = {
    "task_id": 7, "text": "Write a function to add.", "code": "def plus(a, b):\n    return a + b",
    "test_list": ["assert plus(1, 2) == 3", "assert plus(-1, 1) == 0"], "test_setup_code": "",
}  # fmt: skip


@pytest.mark.parametrize("row", [HUMANEVAL, MBPP, {**MBPP, "test_setup_code": "import math"}])
async def test_rows_of_known_layouts_are_solved_by_their_own_solution(tmp_path: Path, row: dict[str, object]):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(row) + "\n")
    environment = await begin(data=file)
    _, reward, _, _, info = await environment.step(environment.oracle())
    assert (reward, info["solved"]) == (1.0, True)
    environment = await begin(data=file)
    assert (await environment.step(wrong_answer(environment)))[1] < 0.5
    environment = await begin(data=file)
    exits = f"import sys\ndef {environment.hidden.entry}(*a):\n    sys.exit(0)"
    assert (await environment.step(exits))[1] < 0.5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "x"}', "neither envhub's layout .* nor HumanEval's"),
        ('{"entry_point": "f", "prompt": "x"}', "no column 'test'"),
        ('{"text": "x", "test_list": []}', "'test_list' is a list of assertions"),
        ('{"text": "x", "test_list": ["assert f(1) =="]}', "the tests are no Python"),
        ("{", "not JSON"),
    ],
)
def test_a_broken_row_is_named_with_its_line(tmp_path: Path, line: str, said: str):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(MBPP) + "\n" + line + "\n")
    with pytest.raises(DataError, match=f"line 2: .*{said}"):
        _ = SandboxCodeEnvironment(data=file).tasks


def test_an_unknown_level_or_key_is_refused():
    with pytest.raises(UserError, match="levels 1 to 6, not 9"):
        _ = SandboxCodeEnvironment(levels=[9]).tasks
    with pytest.raises(ConfigError, match="did you mean 'tries'"):
        SandboxCodeEnvironment(trys=3)


CYCLE = {
    "task_id": "X/1", "entry_point": "decode",
    "prompt": "from typing import (\n    List,\n)\n\ndef encode(s: str) -> str:\n    return s[::-1]\n\n"
              "def decode(s: str) -> str:\n    \"\"\"Undo encode.\"\"\"\n",
    "canonical_solution": "    return encode(s)\n",
    "test": "def check(candidate):\n    text = \"\"\"a\nb\"\"\"\n    assert candidate(encode(text)) == text\n",
}  # fmt: skip


async def test_what_a_prompt_defines_is_there_for_submission_and_tests(tmp_path: Path):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(CYCLE) + "\n")
    for code in ("import math\ndef decode(s: str) -> str:\n    x: List = []\n    return encode(s)", None):
        environment = await begin(data=file)
        answer = environment.oracle() if code is None else code
        assert (await environment.step(answer))[4]["solved"]


async def test_a_data_files_assertions_compare_as_python_does(tmp_path: Path):
    row = {"text": "Triple.", "test_list": ["assert triple(4) == 12", "assert triple(1) == 3"]}
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(row) + "\n" + json.dumps({"text": "s", "test_list": ["assert s([1]) == {1}"]}) + "\n")
    tasks = SandboxCodeEnvironment(data=file).tasks
    by_entry = {t.info["entry"]: t for split in tasks.splits for t in tasks.iterate(split)}
    for entry, code in (("triple", "def triple(x):\n    return 3.0 * x"), ("s", "def s(x):\n    return set(x)")):
        environment = SandboxCodeEnvironment(data=file)
        await environment.reset(options={"task": by_entry[entry]})
        assert (await environment.step(code))[4]["solved"], entry


async def test_code_that_does_not_parse_is_told_so():
    environment = await begin()
    observation, reward, _, _, info = await environment.step(f"def {environment.hidden.entry}(:\n")
    assert reward == 0.0 and "syntax error" in observation and "syntax_error" in info["tests"]
