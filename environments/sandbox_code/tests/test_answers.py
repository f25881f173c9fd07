"""What of an answer is the submission, and whether it defines the function that is asked for."""

import json
from pathlib import Path

import pytest

from envhub.environments.sandbox_code import SandboxCodeEnvironment
from envhub.environments.sandbox_code.answers import defines, submission
from envhub.sandbox import ProcessSandbox, RunOutcome

FORMS = {
    "a function": "def f(a, b): return a + b",
    "a coroutine function": "import asyncio\nasync def g(a, b): return a + b\ndef f(a, b): return asyncio.run(g(a, b))",
    "an annotated assignment": "from typing import Callable\nf: Callable[[int, int], int] = lambda a, b: a + b",
    "a lambda": "f = lambda a, b: a + b",
    "several targets": "g = f = lambda a, b: a + b",
    "an imported name": "from operator import add as f",
    "an imported module's name": "import operator as g\nfrom math import hypot as h, gcd\nf = g.add",
    "a star": "from operator import *\nf = add",
    "a tuple": "f, g = lambda a, b: a + b, lambda a, b: a - b",
    "a nested tuple": "(g, [*h, f]) = 1, [2, 3, lambda a, b: a + b]",
    "a walrus": "print(f := lambda a, b: a + b)",
    "a walrus in a comprehension": "[f := (lambda a, b: a + b) for _ in range(1)]",
    "a class": "class f(int):\n    def __new__(cls, a, b): return a + b",
    "a method": "class Solution:\n    def f(self, a, b): return a + b",
    "an inherited method": "class Base:\n    def f(self, a, b): return a + b\nclass Solution(Base): pass",
    "a condition": "if True:\n    def f(a, b): return a + b\nelse:\n    f = None",
    "an else": "if False:\n    pass\nelse:\n    def f(a, b): return a + b",
    "a try": "try:\n    from nowhere import f\nexcept ImportError:\n    def f(a, b): return a + b",
    "a finally": "try:\n    pass\nfinally:\n    def f(a, b): return a + b",
    "a context": "import contextlib\nwith contextlib.suppress(Exception):\n    def f(a, b): return a + b",
    "a context's name": "import contextlib, operator\nwith contextlib.nullcontext(operator.add) as f:\n    pass",
    "a loop": "while True:\n    def f(a, b): return a + b\n    break",
    "a loop's variable": "import operator\nfor f in (operator.sub, operator.add):\n    pass",
    "a case": "import operator\nmatch operator.add:\n    case f:\n        pass",
    "a global": "def make():\n    global f\n    def f(a, b): return a + b\nmake()",
    "a byte order mark": "\ufeffdef f(a, b): return a + b",
    "carriage returns": "def f(a, b):\r\n    c = a + b\r\n    return c\r\n",
    "a decorator": "import functools\n@functools.cache\ndef f(a, b): return a + b",
}


@pytest.mark.parametrize("code", FORMS.values(), ids=FORMS)
async def test_what_the_sandbox_can_call_is_seen_as_defined(code: str):
    for text in (code, f"Here:\n\n```python\n{code}\n```\nDone."):
        found = submission(text, "f")
        assert defines(found, "f")
        result = (await ProcessSandbox(concurrency=2).calls(found, "f", [[2, 3]]))[0]
        assert (result.outcome, result.value) == (RunOutcome.ok, 5), result.error


@pytest.mark.parametrize(
    "code",
    [
        "", "f", "f(1)", "print('def f')", "# def f(): pass", "f: int", "g = [f for f in ()]", "g = lambda f: f",
        "def g():\n    def f(): pass", "def g(f): f = 1", "class A:\n    def f(self): pass", "import math.f", "x.f = 1",
        "x = '''\ndef f(): pass\n'''", "f[0] = 1",
    ],
)  # fmt: skip
def test_what_binds_no_such_name_is_not(code: str):
    assert not defines(code, "f")


DOCSTRING = 'def f(x):\n    """Give x back.\n\n    ```\n    f(1)\n    ```\n    """\n    return x'
FLAT = 'def f(x):\n  """\n```\nf(1)\n```\n"""\n  return x'
FENCED = [
    ("```python\n{}\n```", "def f(): return 1"),
    ("~~~python\n{}\n~~~\nIt works.", "def f(): return 1"),
    ("~~~\n{}\n~~~", "def f(): return 1"),
    ("````python\n{}\n````", "def f(): return 1"),
    ("````python\n{}\n````\nMore.", FLAT),
    ("```python\n{}\n```\nMore.\n```\nf(1)\n```", DOCSTRING),
    ("```python\n{}\n```", FLAT),
    ("```python\n{}", DOCSTRING),
    ("{}", DOCSTRING),
    ("~~~py\n{}\n~~~", DOCSTRING),
    ("```Python\n{}\n```", "def f(): return 1"),
    ('```python title="a.py"\n{}\n```', "def f(): return 1"),
    ("Sure: ```python\n{}\n```", "def f(): return 1"),
    ("```bash\nls\n```\n```py\n{}\n```", "def f(): return 2"),
    ("```python\ndef f(): return 0\n```\nBetter:\n```python\n{}\n```", "def f(): return 2"),
    ("```\n{}\n```\nUse:\n```python\nf()\n```", "def f(): return 1"),
    ("\ufeff```python\n\ufeff{}\n```", "def f(): return 1"),
    ("```python\n{}\n```", "def f(:\n    return 1"),
    ("```python\n{}\n```\nThen\n```python\nprint(1)\n```", 'def f():\n    """never closed'),
]


@pytest.mark.parametrize(("text", "code"), FENCED)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_submission_is_the_block_that_defines_the_function(text: str, code: str, end: str):
    answer = text.replace("{}", code).replace("\n", end)
    assert submission(answer, "f").strip() == code


def test_a_block_in_a_list_is_read_without_its_indentation():
    text = "1. Write it:\n   ```python\n   def f(x):\n       return x\n   ```\n2. Run it."
    assert submission(text, "f").strip() == "def f(x):\n    return x"


def test_many_fences_are_read_in_a_moment():
    assert "f" not in submission("```\n'''\n" * 20_000, "f")


@pytest.mark.parametrize("code", ["f = 1", "from math import *", "f = None\ndef g(): pass"])
async def test_a_name_that_cannot_be_called_is_not_paid(tmp_path: Path, code: str):
    environment = await begin(tmp_path, prompt="def f(x):\n")
    observation, reward, *_ = await environment.step(code)
    assert reward == 0.0 and observation.startswith("Your answer defines no function f. ")


async def begin(folder: Path, prompt: str, test: str = "def check(c): assert c(1) == 1") -> SandboxCodeEnvironment:
    row = {"prompt": prompt, "entry_point": "f", "test": test, "canonical_solution": "    return x\n"}
    file = folder / "tasks.jsonl"
    file.write_text(json.dumps(row) + "\n")
    environment = SandboxCodeEnvironment(data=file)
    await environment.reset()
    return environment


FUTURE = "from __future__ import annotations\n"


@pytest.mark.parametrize("prompt", ["import math\ndef f(x):\n", FUTURE + "import math\ndef f(x):\n", "def f(x):\n"])
@pytest.mark.parametrize("test", ["def check(c): assert c(1) == 1", "def check(c): assert c(1) == math.floor(1.5)"])
@pytest.mark.parametrize(
    "code",
    [
        FUTURE + "def f(x: Nowhere) -> Nothing: return math.floor(x)",
        '"""A module."""\n\n' + FUTURE + "def f(x: Nowhere): return math.floor(x)",
        "from __future__ import (\n    annotations,\n    division,\n); y = 1\ndef f(x: Nowhere): return x",
        "from __future__ import annotations as later, division\ndef f(x: Nowhere): return x if later else 0",
        "# é\n" + FUTURE.strip() + "; z = 'é'; import os\ndef f(x: Nowhere): return x",
        None,
    ],
)
async def test_future_imports_of_a_submission_come_before_what_the_prompt_defines(
    tmp_path: Path, prompt: str, test: str, code: str | None
):
    environment = await begin(tmp_path, prompt, test)
    if code and "math" in code and "math" not in prompt:
        code = code.replace("math.floor(x)", "x")
    step = await environment.step(environment.oracle() if code is None else code)
    assert step[4]["solved"], step[0]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def f(x):\n    return x\n\nx = (\n", 4),
        ("def f(x):\n    return x\n" + FUTURE, 3),
        (FUTURE + "def f(x):\n    return x +\n", 3),
    ],
)
async def test_a_syntax_error_is_told_with_the_line_of_the_answer(tmp_path: Path, code: str, line: int):
    environment = await begin(tmp_path, "import math\nimport os\nimport re\ndef f(x):\n")
    observation, reward, *_ = await environment.step(f"```python\n{code}```")
    assert reward == 0.0 and f"(line {line})" in observation
