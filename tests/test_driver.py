import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from envhub import Action, EnvironmentFault, ModelFault
from envhub.driver import Driver
from envhub.errors import ConfigError, DeadlineError, UserError
from envhub.task_host import TaskHost

MUTE = """
import numbers
class Mute(Exception):
    def __str__(self): 1 / 0
    def __repr__(self): 1 / 0
    def __float__(self): 1 / 0
numbers.Real.register(Mute)
from envhub.errors import RewardFault
class Silent(EnvironmentFault):
    def __str__(self): raise SystemExit(8)
class Nameless(RewardFault):
    def __init__(self): Exception.__init__(self, "no name")
class Hidden(type):
    @property
    def __name__(cls): raise SystemExit(3)
class Masked(Exception, metaclass=Hidden):
    __traceback__ = property(lambda self: 1 / 0)
class Ghost:
    @property
    def __class__(self): raise asyncio.CancelledError("boo")
"""

BODY = """
class Probe(Environment):
    isolation = {isolation!r}
    def reset(self, *, seed=None, options=None):
        self.count = 0
        return f"{{self.rng.random()}}", {{"pid": os.getpid()}}
    def step(self, action):
        self.count += 1
        {step}
        return "ok", 1.0, False, False, {{"count": self.count}}
    def close(self):
        {close}
"""


def _body(step: str = "pass", isolation: str = "thread", close: str = "pass") -> str:
    return BODY.format(step=step, isolation=isolation, close=close)


async def _drive(spec, text: str = "go", seconds: float = 5.0):
    driver = Driver(spec, step_seconds=seconds)
    try:
        await driver.reset(driver.tasks.get("train", 0))
        return await driver.step(Action(text))
    finally:
        await driver.close()


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_plain_methods_run_in_a_thread_or_in_a_process(write_environment, isolation: str) -> None:
    driver = Driver(write_environment(_body(isolation=isolation)))
    task = driver.tasks.get("train", 0)
    observation, info = await driver.reset(task)
    again, _ = await driver.reset(task)
    assert observation == again
    assert (info["pid"] == os.getpid()) == (isolation == "thread")
    for count in (1, 2):
        assert (await driver.step(Action("x"))).info == {"count": count}
    await driver.close()
    await driver.close()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("raise KeyError('lost')", r"environment 'probe': step raised KeyError: 'lost' \(.*probe\.py:11\)"),
        ("return 'just text'", "not \\(observation, reward, terminated, truncated, info\\)"),
        ("return 'x', float('nan'), False, False, {}", "the reward nan, not a finite number"),
        ("return 'x', None, False, False, {}", "the reward None"),
        ("return 'x', '1', False, False, {}", "the reward '1'"),
        ("return 'x', True, False, False, {}", "the reward True"),
        ("return 'x', 1, 'no', False, {}", "terminated='no', not a bool"),
        ("return 'x', 1, False, 0, {}", "truncated=0, not a bool"),
        ("return 'x', 1, False, False, None", "info None, not a dict"),
        ("return 5, 1, False, False, {}", "an observation is a str"),
        ("raise SystemExit(3)", r"step raised SystemExit: 3 \(.*probe\.py:11\)"),
        ("raise KeyboardInterrupt", "step raised KeyboardInterrupt"),
        ("raise GeneratorExit", "step raised GeneratorExit"),
        ("raise asyncio.CancelledError", "step raised CancelledError"),
        ("raise StopIteration", "StopIteration"),
        ("raise Silent()", "<Silent: its text fails with SystemExit>"),
        ("raise EnvironmentFault(Mute())", "<EnvironmentFault: its text fails with ZeroDivisionError>"),
        ("raise Nameless()", "no name"),
        ("raise Masked('face')", r"step raised Masked: face \(.*probe\.py:11\)"),
        ("return 'x', Ghost(), False, False, {}", "step returned what raises CancelledError: boo"),
        ("raise Mute", "step raised Mute: <Mute: its text fails with ZeroDivisionError>"),
        ("return 'x', 10**400, False, False, {}", "the reward 1000.*, not a finite number"),
        ("return 'x', 1e16, False, False, {}", r"the reward 1e\+16, not a finite number within ±1e\+15"),
        ("return 'x', Mute(), False, False, {}", "the reward <Mute: its text fails"),
        ("return Mute(), 1.0, False, False, {}", "as observation <Mute: its text fails"),
        ("return Message('user', 5), 1.0, False, False, {}", "a message's content is a str or a tuple of"),
        ("return Message('user', 'x', name=3), 1.0, False, False, {}", "a message's name is a str"),
        ("return Observation('abc'), 1.0, False, False, {}", "an observation's messages are a tuple of Message"),
        ("return Observation((), 7), 1.0, False, False, {}", "an observation's tools are a tuple of ToolSpec"),
        ("return [Message('user')] * 10_001, 1.0, False, False, {}", "an observation of 10,001 messages"),
        ("return 'x' * 4_000_001, 1.0, False, False, {}", "an observation of 4,000,001 characters"),
        ("return 'x', 1.0, False, False, {'components': [1]}", r"the components \[1\], not a dict"),
        ("return 'x', 1.0, False, False, {'components': {'style': 'good'}}", "the component 'style' = 'good'"),
        ("return 'x', 1.0, False, False, {'components': {'style': float('nan')}}", "the component 'style' = nan"),
    ],
)
async def test_what_an_environment_does_wrong_is_a_fault_that_names_it(
    write_environment, step: str, message: str
) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        await _drive(write_environment(_body(step) + MUTE))


ASYNC = """
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        self.task = asyncio.current_task()
        return "x", {{}}
    async def step(self, action):
        {step}
        return "ok", 1.0, False, False, {{"same": asyncio.current_task() is self.task}}
    async def close(self):
        CLOSED.append(asyncio.current_task() is self.task)
CLOSED = []
from collections.abc import Mapping
class Odd(Mapping):
    def __getitem__(self, key): return 1
    def __iter__(self): raise RuntimeError("odd")
    def __len__(self): return 1
"""


@pytest.fixture
def own_handler():
    """A handler of SIGINT as `asyncio.run` sets one: where there is none, a KeyboardInterrupt counts as the user's."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("raise SystemExit(3)", r"step raised SystemExit: 3 \(.*probe\.py:9\)"),
        ("raise KeyboardInterrupt", "step raised KeyboardInterrupt"),
        ("raise GeneratorExit", "step raised GeneratorExit"),
        ("raise asyncio.CancelledError", "step raised CancelledError"),
        ("raise TimeoutError('mine')", "step raised TimeoutError: mine"),
        ("asyncio.current_task().cancel(); await asyncio.sleep(5)", "step raised CancelledError"),
        ("return 'x', 1.0, False, False, {'components': Odd()}", "step returned what raises RuntimeError: odd"),
    ],
)
async def test_what_a_coroutine_raises_is_a_fault(own_handler, write_environment, step: str, message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        await _drive(write_environment(ASYNC.format(step=step)))


async def test_all_calls_of_coroutines_run_in_one_task(write_environment) -> None:
    spec = write_environment(ASYNC.format(step="pass"))
    assert (await _drive(spec)).info == {"same": True}
    assert spec.load().step.__globals__["CLOSED"] == [True]


DEAF = "\n".join(
    ("", "        while True:", "            try: await asyncio.sleep(60)", "            except BaseException: pass")
)


async def test_a_coroutine_that_ignores_its_cancellation_is_abandoned(write_environment) -> None:
    before = TaskHost.abandoned_total
    driver = Driver(write_environment(ASYNC.format(step=DEAF)), step_seconds=0.1)
    await driver.reset(driver.tasks.get("train", 0))
    with pytest.raises(
        DeadlineError, match=r"within 0\.1 s \(it waits at .*probe\.py:11 in step\); it ignores its cancellation"
    ):
        await driver.step(Action("x"))
    with pytest.raises(DeadlineError, match="an earlier call ignores its cancellation"):
        await driver.step(Action("x"))
    assert TaskHost.abandoned_total == before + 1
    await driver.close()


def test_a_run_ends_although_a_coroutine_ignores_its_cancellation(write_environment) -> None:
    spec = write_environment(ASYNC.format(step=DEAF))
    code = (
        "import asyncio, sys\nfrom envhub.driver import Driver\nfrom envhub import EnvironmentSpec\n"
        "async def main():\n    driver = Driver(EnvironmentSpec('probe', sys.argv[1]), step_seconds=0.1)\n"
        "    await driver.reset(driver.tasks.get('train', 0))\n"
        "    try: await driver.step('x')\n    except Exception as problem: print(problem)\n    await driver.close()\n"
        "asyncio.run(main())\nprint('ended')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, spec.target], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "ended"
    assert "was abandoned" in done.stdout
    assert done.stderr == ""


async def test_a_numpy_result_is_as_good(write_environment) -> None:
    spec = write_environment(
        _body("import numpy as np; return 'x', np.float32(0.5), np.bool_(True), np.bool_(False), {}")
    )
    result = await _drive(spec)
    assert (result.reward, result.terminated, result.truncated) == (0.5, True, False)
    assert type(result.terminated) is bool


async def test_a_model_fault_travels_on(write_environment) -> None:
    spec = write_environment(_body("raise ModelFault('no move')"))
    with pytest.raises(ModelFault, match="no move"):
        await _drive(spec)
    spec = write_environment(_body("raise ModelFault('no move')", "process"), file="other.py")
    with pytest.raises(ModelFault, match="no move"):
        await _drive(spec)


async def test_a_hanging_thread_is_named_with_its_line(write_environment) -> None:
    spec = write_environment(_body("time.sleep(1.2)"))
    with pytest.raises(DeadlineError, match=r"step did not return within 0\.2 s \(it sits at .*probe\.py:11 in step\)"):
        await _drive(spec, seconds=0.2)


async def test_a_hanging_coroutine_is_stopped(write_environment) -> None:
    body = """
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        return "x", {}
    async def step(self, action):
        await asyncio.Event().wait()
"""
    with pytest.raises(DeadlineError, match="did not return within"):
        await _drive(write_environment(body), seconds=0.1)


async def test_an_environments_own_timeout_is_its_fault_and_no_deadline(write_environment) -> None:
    body = """
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        return "x", {}
    async def step(self, action):
        raise TimeoutError("mine")
"""
    with pytest.raises(EnvironmentFault, match="raised TimeoutError: mine"):
        await _drive(write_environment(body))


@pytest.mark.parametrize("step", ["9 ** (9 ** 9 ** 2)", "while True: pass"])
async def test_a_hanging_process_is_killed(write_environment, step: str) -> None:
    began = time.monotonic()
    with pytest.raises(DeadlineError, match="its process was killed"):
        await _drive(write_environment(_body(step, "process")), seconds=0.5)
    assert time.monotonic() - began < 30


async def test_a_dying_process_is_a_fault_with_its_end(write_environment) -> None:
    with pytest.raises(EnvironmentFault, match="its process died \\(exit code 7\\)"):
        await _drive(write_environment(_body("os._exit(7)", "process")))
    with pytest.raises(EnvironmentFault, match="killed by SIGKILL"):
        await _drive(write_environment(_body("os.kill(os.getpid(), 9)", "process"), file="killed.py"))


async def test_printing_does_not_break_a_process(write_environment) -> None:
    spec = write_environment(_body("print('noise', flush=True); os.write(1, b'more')", "process"))
    assert (await _drive(spec)).reward == 1.0


async def test_no_process_survives(write_environment) -> None:
    driver = Driver(write_environment(_body(isolation="process")))
    _, info = await driver.reset(driver.tasks.get("train", 0))
    await driver.close()
    with pytest.raises(ProcessLookupError):
        os.kill(info["pid"], 0)


async def test_a_close_that_is_set_on_the_instance_is_called(write_environment, tmp_path) -> None:
    body = f"""
class Probe(Environment):
    def __init__(self, config=None):
        super().__init__(config)
        self.close = lambda: open({str(tmp_path / "closed")!r}, "w").close()
    def reset(self, *, seed=None, options=None):
        return "x", {{}}
    def step(self, action):
        return "x", 0.0, True, False, {{}}
"""
    await _drive(write_environment(body))
    assert (tmp_path / "closed").exists()


async def test_a_second_cancellation_leaves_a_call_its_grace(write_environment, tmp_path) -> None:
    step = f"\n        try: await asyncio.sleep(60)\n        finally: await asyncio.sleep(0.2); open({str(tmp_path / 'freed')!r}, 'w').close()"
    driver = Driver(write_environment(ASYNC.format(step=step)))
    await driver.reset(driver.tasks.get("train", 0))
    before = TaskHost.abandoned_total
    stepping = asyncio.create_task(driver.step(Action("x")))
    for _ in range(2):
        await asyncio.sleep(0.05)
        stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    assert (tmp_path / "freed").exists()
    assert TaskHost.abandoned_total == before
    await driver.close()


async def test_a_closed_task_takes_no_more_calls() -> None:
    host = TaskHost()
    assert await host.call(lambda: 1, deadline=5, what="one") == 1
    host.close()
    with pytest.raises(EnvironmentFault, match="two: its task is closed"):
        await host.call(lambda: 2, deadline=5, what="two")


async def test_a_failing_close_raises_nothing(write_environment) -> None:
    assert (await _drive(write_environment(_body(close="raise RuntimeError('stuck')")))).reward == 1.0


async def test_cancelling_a_step_ends_it(write_environment) -> None:
    driver = Driver(write_environment(_body("time.sleep(30)", "process")))
    await driver.reset(driver.tasks.get("train", 0))
    stepping = asyncio.create_task(driver.step(Action("x")))
    await asyncio.sleep(0.2)
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    await driver.close()


def test_a_mistake_in_the_configuration_is_the_users(write_environment) -> None:
    with pytest.raises(ConfigError, match="no configuration key 'size'"):
        Driver(write_environment(_body()), {"size": 1})
    with pytest.raises(UserError, match="isolation is 'thread' or 'process', not 'moon'"):
        Driver(write_environment(_body(isolation="moon"), file="moon.py"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("def __init__(self, config=None): raise OSError('no display')", "its constructor raised OSError: no display"),
        ("def __init__(self, config=None): sys.exit(4)", "its constructor raised SystemExit: 4"),
        ("def __init__(self, config=None): raise Silent()", "its constructor raised Silent: <Silent: its text fails"),
        ("rubric = 5", "rubric is a Rubric, not 5"),
        ("rubric = Ghost()", "rubric raised CancelledError: boo"),
        ("tasks = Ghost()", "tasks raised CancelledError: boo"),
        ("tasks = None", "tasks is a TaskSet, not None"),
        ("tasks = property(lambda self: 1 / 0)", r"tasks raised ZeroDivisionError: division by zero \(.*probe\.py"),
        ("rubric = property(lambda self: 1 / 0)", "rubric raised ZeroDivisionError"),
    ],
)
def test_a_mistake_in_the_class_is_its_authors(write_environment, line: str, message: str) -> None:
    spec = write_environment(f"{MUTE}\nclass Probe(Environment):\n    {line}\n")
    with pytest.raises(UserError, match=f"environment 'probe': {message}"):
        _ = Driver(spec).tasks, Driver(spec).rubric


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("limits = 5", "limits is a Limits, such as .*, not 5"),
        ("limits = Ghost()", r"raised CancelledError: boo \(.*probe\.py"),
        ("isolation = Ghost()", "isolation is 'thread' or 'process', not <.*Ghost object"),
        ("Config = Ghost()", "raised CancelledError: boo"),
        ("name = Ghost()", "raised CancelledError: boo"),
    ],
)
def test_what_a_class_declares_is_checked_when_it_is_loaded(write_environment, line: str, message: str) -> None:
    with pytest.raises(UserError, match=f"probe.py:Probe:? {message}"):
        write_environment(f"{MUTE}\nclass Probe(Environment):\n    {line}\n").load()


async def test_an_oracle_of_another_type_is_a_fault(write_environment) -> None:
    body = "class Probe(Environment):\n    def oracle(self): return {oracle}\n"
    for oracle in ("5", "Action(None)"):
        driver = Driver(write_environment(body.format(oracle=oracle), file=f"probe{len(oracle)}.py"))
        with pytest.raises(EnvironmentFault, match="oracle (returned 5|raised TypeError: an action's text is a str)"):
            await driver.oracle()
        await driver.close()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:X", "no_such_module does not import: ModuleNotFoundError"),
        ("nothing", "expected 'module:name' or 'path.py:name'"),
        ("/nowhere/x.py:X", "cannot load /nowhere/x.py: No such file"),
        ("json:loads", "json:loads is not an Environment class"),
        ("json:laods", "json has no 'laods'; did you mean 'loads'"),
    ],
)
def test_a_target_that_is_no_environment_is_named(target: str, message: str) -> None:
    from envhub import EnvironmentSpec

    with pytest.raises(UserError, match=message):
        EnvironmentSpec("x", target).load()


def test_a_file_that_does_not_import_is_named(write_environment) -> None:
    with pytest.raises(UserError, match=r"probe\.py does not import: ZeroDivisionError"):
        write_environment("1 / 0").load()
