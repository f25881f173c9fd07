"""Data files whose tests are programs: hostile submissions earn nothing, honest ones are paid."""

import json
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from envhub.environments.sandbox_code import SandboxCodeEnvironment
from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import landlock
from envhub.tasks import Task

PAIRS = {
    "task_id": "P/0", "entry_point": "pairs", "prompt": "def pairs(xs: list) -> list:\n    \"\"\"Each with its double.\"\"\"\n",
    "canonical_solution": "    return [(x, 2 * x) for x in xs]\n",
    "test": textwrap.dedent("""
        METADATA = {"expected": [(1, 2), (3, 6)]}

        def check(candidate):
            expected = METADATA["expected"]
            got = candidate([1, 3])
            assert isinstance(got, list) and len(got) == len(expected), "length"
            assert not got != expected
            assert all(a == b for a, b in zip(got, expected))
            assert sorted(got) == expected and abs(sum(b for _, b in got) - 8) < 1e-9
            for got, wanted in zip(map(candidate, ([], [5])), ([], [(5, 10)])):
                assert got == wanted
    """),
}  # fmt: skip
ALWAYS_EQUAL = """
class Yes{base}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __len__(self): return 2
    def __iter__(self): return iter([])
    def __lt__(self, other): return True
    def __sub__(self, other): return 0
    def __abs__(self): return 0
    def __radd__(self, other): return self
    __hash__ = None
    __class__ = list
"""
REBOUND = ("isinstance", "len", "abs", "all", "any", "sorted", "sum", "zip", "map", "print", "exec", "compile", "eval")
SEARCH = """
def hunt(value, seen):
    if id(value) in seen or len(seen) > 20000: return None
    seen.add(id(value))
    if isinstance(value, dict):
        if "expected" in value: return value["expected"]
        below = list(value.values())
    elif isinstance(value, (list, tuple)):
        below = list(value)
    else:
        return None
    for item in below:
        found = hunt(item, seen)
        if found is not None: return found
"""
FRAMES = """
import sys
def frames():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
"""
EXPLOITS = {
    "does nothing": "def pairs(xs): return []",
    "exits at load": "import sys\nsys.exit(0)\ndef pairs(xs): return []",
    "exits in the call": "import sys\ndef pairs(xs): sys.exit(0)",
    "exits hard at load": "import os\nos._exit(0)\ndef pairs(xs): return []",
    "exits hard in the call": "import os\ndef pairs(xs): os._exit(0)",
    "raises BaseException": "def pairs(xs): raise KeyboardInterrupt",
    "ends the loop of the tests": "def pairs(xs):\n    if len(xs) == 2: return [(1, 2), (3, 6)]\n    raise StopIteration",
    "catches its own subclass": "class Stop(StopIteration): pass\ndef pairs(xs):\n"
        "    if len(xs) == 2: return [(1, 2), (3, 6)]\n    raise Stop",
    "no-op exec": "import builtins\nbuiltins.exec = lambda *a, **k: None\ndef pairs(xs): return []",
    "compile drops assertions": "import builtins\nreal = builtins.compile\n"
        "builtins.compile = lambda source, *a, **k: real('pass', *a, **k)\ndef pairs(xs): return []",
    "compiles optimised": "import builtins\nreal = builtins.compile\n"
        "builtins.compile = lambda s, f, m, *a, **k: real(s, f, m, optimize=2)\ndef pairs(xs): return []",
    "yes-saying builtins": "import builtins\n"
        f"for name in {REBOUND}: setattr(builtins, name, lambda *a, **k: True)\ndef pairs(xs): return []",
    "builtins of the module": "__builtins__ = {}\nglobals()['__builtins__'] = {'check': lambda c: None}\ndef pairs(xs): return []",
    "rebinds AssertionError": "import builtins\nclass Quiet(Exception): pass\n"
        "builtins.AssertionError = Quiet\ndef pairs(xs): return []",
    "asserts on its own": "def pairs(xs): raise AssertionError",
    "patches check": "def check(candidate): pass\nimport sys, builtins\nbuiltins.check = check\n"
        "for module in list(sys.modules.values()): module.__dict__['check'] = check\ndef pairs(xs): return []",
    "redefines candidate": "candidate = lambda xs: [(x, 2) for x in xs]\nimport builtins\n"
        "builtins.candidate = candidate\ndef pairs(xs): return []",
    "writes __main__": "import __main__\nfor name in list(vars(__main__)):\n"
        "    if callable(getattr(__main__, name)) and not name.startswith('__'):\n"
        "        setattr(__main__, name, lambda *a, **k: True)\ndef pairs(xs): return []",
    "replaces decode and encode": "import sys\nfor module in list(sys.modules.values()):\n"
        "    for name in ('encode', 'decode', 'frame'):\n"
        "        if hasattr(module, name) and module.__name__ != 'codecs':\n"
        "            setattr(module, name, lambda *a, **k: {'r': True})\ndef pairs(xs): return []",
    "passes on the wire": "import sys, os\ndef pairs(xs):\n    for fd in range(3, 40):\n"
        "        for body in (b'{\"i\": \"\", \"v\": [\"passed\", \"\"]}', b'{\"v\": [\"passed\", \"\"]}'):\n"
        "            try: os.write(fd, len(body).to_bytes(4, 'big') + body)\n            except OSError: pass\n    return []",
    "always equal": ALWAYS_EQUAL.format(base="") + "def pairs(xs): return Yes()",
    "always equal items": ALWAYS_EQUAL.format(base="") + "def pairs(xs): return [Yes() for x in xs]",
    "always equal int": ALWAYS_EQUAL.format(base="(int)") + "def pairs(xs): return [(x, Yes(0)) for x in xs]",
    "always equal str": ALWAYS_EQUAL.format(base="(str)") + "def pairs(xs): return [Yes('') for x in xs]",
    "always equal list": ALWAYS_EQUAL.format(base="(list)") + "def pairs(xs): return Yes()",
    "always equal by metaclass": "class Meta(type):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n"
        "    __hash__ = type.__hash__\n    __len__ = lambda s: 2\n    __iter__ = lambda s: iter([])\n"
        "class Yes(metaclass=Meta): pass\ndef pairs(xs): return Yes",
    "mock": "from unittest.mock import ANY\ndef pairs(xs): return [ANY for x in xs]",
    "empties the argument": "def pairs(xs):\n    xs.clear()\n    return xs",
    "raises in __del__": "import os\nclass End:\n    def __del__(self):\n        os._exit(0)\n"
        "def pairs(xs):\n    End()\n    return []",
    "raises in __del__ later": "class End:\n    def __del__(self): raise SystemExit(0)\nend = End()\ndef pairs(xs): return []",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef pairs(xs): return []",
    "excepthook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef pairs(xs): return [][0]",
    "settrace": "import sys\ndef trace(frame, event, arg):\n    for name in list(frame.f_locals):\n"
        "        if name == 'expected': frame.f_locals[name].clear()\n    return trace\n"
        "sys.settrace(trace)\ndef pairs(xs):\n    sys._getframe(1).f_trace = trace\n    return []",
    "setprofile": "import sys, os\nsys.setprofile(lambda f, e, a: os._exit(0) if e == 'c_call' and a is len else None)\n"
        "def pairs(xs): return []",
    "searches the heap": "import gc\n" + SEARCH + "def pairs(xs):\n    if len(xs) == 2:\n"
        "        return hunt(gc.get_objects(), set()) or []\n    return [(x, 2 * x) for x in xs]",
    "empties what it finds": "import gc\n" + SEARCH + "def pairs(xs):\n    found = hunt(gc.get_objects(), set())\n"
        "    if found: found.clear()\n    return []",
    "reads frames": FRAMES + SEARCH + "def pairs(xs):\n    if len(xs) == 2:\n        for f in frames():\n"
        "            found = hunt([f.f_locals, f.f_globals], set())\n            if found: return found\n        return []\n"
        "    return [(x, 2 * x) for x in xs]",
    "writes frames": FRAMES + "import ctypes\ndef pairs(xs):\n    for f in frames():\n        for name, value in list(f.f_locals.items()):\n"
        "            if isinstance(value, list) and value is not xs: value.clear()\n"
        "        f.f_locals.update(expected=[], got=[], wanted=[], passed=True)\n"
        "        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(f), 0)\n    return []",
    "returns the token": FRAMES + "import re\ndef pairs(xs):\n    for f in frames():\n"
        "        for name in f.f_globals:\n            if name.startswith('_check_'):\n"
        "                token = name.removeprefix('_check_')\n                f.f_globals[name].__code__ = (lambda: token).__code__\n"
        "    return []",
    "replaces the code that checks": "import gc, types\ndef pairs(xs):\n    for f in gc.get_objects():\n"
        "        if isinstance(f, types.FunctionType) and f.__name__ in ('check', 'encode', 'same_value'):\n"
        "            f.__code__ = (lambda *a, **k: True).__code__\n    return []",
    "a thread that changes frames": "import sys, threading, time, ctypes\ndef change():\n    end = time.monotonic() + 0.3\n"
        "    while time.monotonic() < end:\n        for f in list(sys._current_frames().values()):\n"
        "            while f:\n                for v in list(f.f_locals.values()):\n"
        "                    if isinstance(v, list) and v and isinstance(v[0], tuple): v.clear()\n                f = f.f_back\n"
        "threading.Thread(target=change, daemon=True).start()\ndef pairs(xs):\n    time.sleep(0.1)\n    return []",
    "forks and answers from both": "import os\ndef pairs(xs):\n    if os.fork() == 0: os._exit(0)\n    return []",
    "reads the tests of its neighbours": "import os, re\ndef pairs(xs):\n    if len(xs) != 2: return [(x, 2 * x) for x in xs]\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n        for name in ('cmdline', 'environ', 'mem', 'fd/0'):\n"
        "            try:\n                if pid != str(os.getpid()) and b'METADATA' in open(f'/proc/{pid}/{name}', 'rb').read(1 << 20):\n"
        "                    return [(1, 2), (3, 6)]\n            except (OSError, ValueError): pass\n    return []",
    "prints passed": "print('passed')\ndef pairs(xs): print(True)",
    "patches int comparison": "import ctypes, gc\ndef pairs(xs):\n    table = gc.get_referents(list.__dict__)[0]\n"
        "    table['__eq__'] = lambda a, b: True\n    ctypes.pythonapi.PyType_Modified(ctypes.py_object(list))\n    return []",
}  # fmt: skip


async def begin(folder: Path, row: dict[str, object], **config: object) -> SandboxCodeEnvironment:
    file = folder / "tasks.jsonl"
    file.write_text(json.dumps(row) + "\n")
    environment = SandboxCodeEnvironment(data=file, **config)
    await environment.reset()
    return environment


async def solves(folder: Path, row: dict[str, object], answer: str | None = None) -> bool:
    environment = await begin(folder, row, tries=1)
    step = await environment.step(environment.oracle() if answer is None else answer)
    assert (step[1] == 1.0) is step[4]["solved"]
    return bool(step[4]["solved"])


def humaneval(test: str, prompt: str = "def f(*args):\n    ...\n") -> dict[str, object]:
    return {"prompt": prompt, "entry_point": "f", "test": f"def check(candidate):\n{textwrap.indent(test, '    ')}\n"}


@pytest.mark.parametrize("name", EXPLOITS)
async def test_a_hostile_submission_earns_nothing_for_tests(tmp_path: Path, name: str):
    assert not await solves(tmp_path, PAIRS, EXPLOITS[name])


async def test_a_hostile_submission_earns_nothing_by_assertions(tmp_path: Path):
    row = {
        "text": "Add.", "test_list": ["assert plus(1, 2) == 3", "assert not plus(2, 2) != 4"], "test_setup_code": "import math",
    }  # fmt: skip
    assert await solves(tmp_path, row, "def plus(a, b): return a + b")
    for code in (
        ALWAYS_EQUAL.format(base="(int)") + "def plus(a, b): return Yes(0)",
        "import builtins\nbuiltins.exec = builtins.compile = print\ndef plus(a, b): return 0",
        "def plus(a, b): return True",
    ):
        assert not await solves(tmp_path, row, code)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of the machine may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(landlock.abi() < 1, reason="this kernel has no Landlock")
async def test_a_submission_that_reads_the_solution_from_the_file_is_not_paid(open_folder: Path):
    cheat = (
        f"import json\nwith open({str(open_folder / 'tasks.jsonl')!r}) as file: row = json.load(file)\n"
        "exec(row['prompt'] + row['canonical_solution'])\ninner = pairs\ndef pairs(xs): return inner(xs)"
    )
    assert not await solves(open_folder, PAIRS, cheat)


async def test_the_honest_solution_of_the_exploited_task_is_paid(tmp_path: Path):
    assert await solves(tmp_path, PAIRS)
    assert await solves(tmp_path, PAIRS, "class Solution:\n    def pairs(self, xs): return [(x, x + x) for x in xs]")
    assert not await solves(tmp_path, PAIRS, "def pairs(xs): return [(x, 3 * x) for x in xs]")


@pytest.mark.parametrize(
    ("test", "code"),
    [
        ("assert abs(candidate(2.0) - 1.41421) < 1e-4", "import math\ndef f(x): return math.sqrt(x)"),
        ("assert candidate(float('inf')) == float('-inf')", "def f(x): return -x"),
        ("assert candidate((1, 'a')) == ('a', 1)", "def f(p): return p[1], p[0]"),
        ("assert candidate([[1], [2, [3]]]) == [[2, [3]], [1]]", "def f(xs): return xs[::-1]"),
        ("assert candidate({'a': [1]}) == {1: 'a', None: (True, 2.5)}", "def f(d): return {1: 'a', None: (True, 2.5)}"),
        ("assert candidate({1, 2}) == {2, 1, (3, 'x')}", "def f(s): return s | {(3, 'x')}"),
        ("assert candidate(frozenset([1])) == frozenset({1, 2})", "def f(s): return s | {2}"),
        ("assert candidate() is None", "def f(): return None"),
        ("assert candidate('ab\\n\\u00e9') == '\\u00e9\\nba'", "def f(s): return s[::-1]"),
        ("assert candidate(1) is True and candidate(0) is False", "def f(x): return x == 1"),
        ("assert candidate(b'ab') == b'ba'", "def f(s): return s[::-1]"),
        ("assert candidate(1j) == -1 + 0j", "def f(z): return z * z"),
        ("assert candidate(10 ** 40) == 10 ** 41", "def f(n): return 10 * n"),
        ("assert candidate(a=1, b=2) == 3\nassert candidate(1, b=1) == 2", "def f(a, *, b): return a + b"),
        ("assert f(3) == candidate(3) == 4", "def f(n): return n + 1"),
        ("xs = [2, 1]\nassert candidate(xs) == [1, 2]\nassert xs == [2, 1]", "def f(xs): xs.sort(); return xs"),
        ("assert candidate('abca') == {'a': 2, 'b': 1, 'c': 1}", "from collections import Counter\ndef f(s): return Counter(s)"),
        ("import random\nfor _ in range(50):\n    n = random.randint(0, 9)\n    assert candidate(n) == n * n", "def f(n): return n * n"),
        ("assert list(map(candidate, [1, 2])) == [2, 3]", "calls = []\ndef f(n): calls.append(n); return n + 1"),
        ("assert candidate.__name__ == 'f' and callable(candidate)", "def f(): pass"),
    ],
)  # fmt: skip
async def test_honest_solutions_are_paid_whatever_they_return(tmp_path: Path, test: str, code: str):
    assert await solves(tmp_path, humaneval(test), code)


EXPECTS_ERRORS = """
try:
    candidate(-1)
except ValueError as problem:
    assert str(problem) == "no, -1", problem
else:
    assert False, "no error"
try:
    candidate("x")
    raise RuntimeError("no error")
except (TypeError, KeyError) as problem:
    assert problem.args == ("x",)
"""


@pytest.mark.parametrize(
    ("code", "right"),
    [
        ("def f(n):\n    if n == -1: raise ValueError(f'no, {n}')\n    raise TypeError(n)", True),
        ("class Own(ValueError): pass\ndef f(n):\n    if n == -1: raise Own(f'no, {n}')\n    return {}[n]", True),
        ("def f(n):\n    if n == -1: raise Exception(f'no, {n}')\n    raise TypeError(n)", False),
        ("def f(n):\n    if n == -1: raise ValueError('yes')\n    raise TypeError(n)", False),
        ("def f(n): return n", False),
    ],
)
async def test_tests_that_expect_errors(tmp_path: Path, code: str, right: bool):
    assert await solves(tmp_path, humaneval(EXPECTS_ERRORS), code) is right


async def test_an_error_that_the_tests_raise_later_is_no_pass(tmp_path: Path):
    test = "try:\n    candidate(1)\nexcept Exception as problem:\n    kept = problem\nassert candidate(2) is True\nraise kept"
    code = "def f(n):\n    if n == 1: raise ValueError('later')\n    return True"
    observation, _, _, _, info = await (await begin(tmp_path, humaneval(test))).step(code)
    assert not info["solved"] and "ValueError: later" in observation


@pytest.mark.parametrize(
    "reply",
    [
        "'[' * 150 + ']' * 150", "'[' * 10 ** 5 + ']' * 10 ** 5", "'9' * 5000", "'{\"h\": 0}'", "'{\"o\": \"x\"}'", "'{'",
        "'{\"g\": [1, 2, 0]}'", "'{\"s\": [[]]}'", "'{\"b\": \"x\"}'", "'{\"c\": [1, 2]}'", "'{\"q\": 1}'", "'NaN'",
    ],
)  # fmt: skip
async def test_a_forged_reply_is_the_submissions_failure_not_a_fault(tmp_path: Path, reply: str):
    code = (
        "import os, sys\ndef pairs(xs):\n    f = sys._getframe(1)\n"
        f"    body = ('{{\"i\": \"' + f.f_locals['request']['i'] + '\", \"r\": ' + {reply} + '}}').encode()\n"
        "    os.write(f.f_locals['channel'], len(body).to_bytes(4, 'big') + body)\n    os._exit(0)"
    )
    assert not await solves(tmp_path, PAIRS, code)
    code = code.replace(
        "f.f_locals['request']['i'] + ", 'f.f_locals[\'request\'][\'i\'] + \'", "e": ["error", "x", "Nope", [\' + '
    )
    assert not await solves(tmp_path, PAIRS, code)


async def test_tests_may_rely_on_the_standard_library_without_importing_it(tmp_path: Path):
    row = {"text": "Root.", "test_list": ["assert math.isclose(root(4.0), 2.0)"]}
    assert await solves(tmp_path, row, "import math\ndef root(x): return math.sqrt(x)")
    assert not await solves(tmp_path, row, "class math:\n    isclose = lambda a, b: True\ndef root(x): return 0.0")


async def test_tests_that_cannot_run_apart_are_a_fault_that_says_why(tmp_path: Path):
    environment = await begin(tmp_path, humaneval("assert candidate(lambda x: x) == 1"))
    with pytest.raises(EnvironmentFault, match="the tests hand a function to the submission"):
        await environment.step("def f(g): return g(1)")


async def test_tests_may_use_what_the_prompt_defines_and_other_functions_of_the_submission(tmp_path: Path):
    prompt = (
        "import math\n\ndef poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n\ndef f(xs):\n    ...\n"
    )
    row = humaneval("assert math.fabs(poly([6, -2], candidate([6, -2]))) < 1e-4\nassert helper(2) == 4", prompt)
    assert await solves(tmp_path, row, "def helper(n): return n * n\ndef f(xs): return -xs[0] / xs[1]")
    assert not await solves(tmp_path, row, "def f(xs): return -xs[0] / xs[1]")
    assert not await solves(
        tmp_path, row, "def helper(n): return n * n\ndef poly(xs, x): return 0\ndef f(xs): return 1.0"
    )


async def test_tests_may_build_arguments_from_classes_of_the_submission(tmp_path: Path):
    tree = "class Node:\n    def __init__(self, data):\n        self.data, self.left = data, None\n"
    row = {
        "text": "Depth.", "test_list": ["assert depth(root) == 2", "assert depth([Node(1)][0]) == 1"],
        "test_setup_code": "root = Node(1)\nroot.left = Node(2)",
    }  # fmt: skip
    right = tree + "def depth(node): return 0 if node is None else 1 + depth(node.left)"
    assert await solves(tmp_path, row, right)
    assert not await solves(tmp_path, row, right.replace("1 +", "2 +"))
    assert not await solves(
        tmp_path, row, ALWAYS_EQUAL.format(base="").replace("Yes", "Node") + "def depth(n): return n"
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def pairs(xs): return object()", "returned <builtins.object object>, which is no plain value"),
        ("class Mine(int): pass\ndef pairs(xs): return [Mine(1)]", "which is no plain value"),
        ("def pairs(xs): return (x for x in xs)", "generator object>, which is no plain value"),
        ("def pairs(xs): return []", "assert isinstance(got, list)"),
        ("def pairs(xs): return xs[9]", "IndexError: list index out of range"),
        ("def pairs(xs): return None", "assert isinstance(got, list)"),
        ("def pairs(xs): return [1, 2]", "assert not got != expected"),
        ("def pairs(xs:", "syntax error"),
        ("import os\ndef pairs(xs): os._exit(0)", "exit code 0"),
    ],
)
async def test_the_failing_test_is_said(tmp_path: Path, code: str, said: str):
    observation, _, _, _, info = await (await begin(tmp_path, PAIRS)).step(code)
    assert said in observation
    assert not info["solved"]


async def test_a_submission_that_hangs_or_floods_fails_its_tests(tmp_path: Path):
    for code, outcome in (
        ("def pairs(xs):\n    while True: pass", "timeout"),
        ("def pairs(xs):\n    print('x' * 10 ** 6)\n    return []", "output_limit"),
        ("def pairs(xs): return 'x' * (2 << 20)", "result_limit"),
    ):
        environment = await begin(tmp_path, PAIRS, seconds=1.0)
        assert (await environment.step(code))[4]["tests"] == {outcome: 1}


async def test_tests_that_never_end_with_what_they_got_fail(tmp_path: Path):
    row = humaneval("n = 0\nwhile n != candidate(1): n += 1")
    environment = await begin(tmp_path, row, seconds=1.0)
    assert (await environment.step("def f(n): return -1"))[4]["tests"] == {"timeout": 1}


async def test_a_task_of_another_set_is_refused_by_name(tmp_path: Path):
    environment = SandboxCodeEnvironment()
    for task in (Task("1 + 1 = ?", 2, id="arithmetic/7"), Task("x", None, {"entry": "f"}, id="arithmetic/7")):
        with pytest.raises(UserError, match="'arithmetic/7'.*sandbox_code"):
            await environment.reset(options={"task": task})


async def test_a_task_that_is_only_a_seed_is_drawn():
    environment = SandboxCodeEnvironment()
    await environment.reset(options={"task": Task(id="seeds/1", seed=3)})
    assert environment.task in list(environment.tasks.iterate("train"))
