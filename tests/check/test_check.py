"""The checker itself: what passes, what it leaves behind, and what it raises."""

import asyncio
import json
import random
import threading

import pytest

from envhub.check import CHECKS, CheckResult, check_environment, quick_check
from envhub.errors import NotRegisteredError, UserError
from envhub.specs import EnvironmentSpec

ECHO = '''
class Probe(Environment):
    """Say what you are told."""
    def reset(self, *, seed=None, options=None):
        self.word = "".join(self.rng.choices("abcdef", k=12))
        return self.word, {}
    def step(self, action):
        return "", float(Action.of(action).text == self.word), True, False, {}
    def oracle(self):
        return self.word
'''
RAISES = '''
class Probe(Environment):
    """Cannot begin."""
    def reset(self, *, seed=None, options=None):
        raise FileNotFoundError("board.txt")
'''
HANGS = '''
class Probe(Environment):
    """Waits for nothing, and says when it was told to stop."""
    async def reset(self, *, seed=None, options=None):
        open(os.environ["PROBE_BEGAN"], "w").close()
        try:
            await asyncio.sleep(600)
        finally:
            open(os.environ["PROBE_ENDED"], "w").close()
'''


def checking_threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("check", "as_gymnasium", "probe"))
    ]


@pytest.mark.parametrize("name", ["guess_number", "math_verify", "sandbox_code"])
async def test_bundled_environment_passes(name: str) -> None:
    report = await check_environment(name)
    assert report.failures == ()
    assert [result.name for result in report.results] == list(CHECKS)
    assert report["junk"].status == report["oracle"].status == report["gymnasium"].status == "pass"


async def test_without_an_oracle_it_is_advised() -> None:
    spec = EnvironmentSpec(
        "lake", "envhub.environments.gymnasium_adapter.environment:GymnasiumEnvironment", {"id": "FrozenLake-v1"}
    )
    report = await check_environment(spec, episodes=2)
    assert report["oracle"].status == "skip"
    assert "define oracle" in report["oracle"].remedy


async def test_junk_that_the_oracle_says_may_be_paid(write_environment) -> None:
    report = await check_environment(write_environment(ECHO))
    assert report.failures == ()


async def test_process_isolation_passes(write_environment) -> None:
    body = ECHO.replace('told."""', 'told."""\n    isolation = "process"')
    report = await check_environment(write_environment(body), episodes=2)
    assert report.failures == ()
    assert report["global_rng"].status == "skip"


async def test_results_are_told_one_by_one_and_the_report_is_json(write_environment) -> None:
    told: list[CheckResult] = []
    report = await check_environment(write_environment(ECHO), on_result=told.append)
    assert tuple(told) == report.results
    as_json = json.loads(json.dumps(report.to_dict()))
    assert as_json["environment"] == "probe"
    assert as_json["ok"] is True
    assert [item["name"] for item in as_json["results"]] == list(CHECKS)


async def test_what_needs_a_failed_check_is_skipped(write_environment) -> None:
    report = await check_environment(write_environment(RAISES))
    after = [result for result in report.results if result.name in ("step", "junk", "oracle", "close")]
    assert {result.status for result in after} == {"skip"}
    assert "'reset' failed" in report["junk"].detail


async def test_leaves_no_thread_and_the_global_generator_as_it_was(write_environment) -> None:
    random.seed(7)
    state = random.getstate()
    await check_environment(write_environment(ECHO))
    assert random.getstate() == state
    for _ in range(100):
        if not checking_threads():
            break
        await asyncio.sleep(0.05)
    assert checking_threads() == []


async def test_cancelling_ends_the_episode(write_environment, tmp_path, monkeypatch) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    monkeypatch.setenv("PROBE_BEGAN", str(began))
    monkeypatch.setenv("PROBE_ENDED", str(ended))
    task = asyncio.create_task(check_environment(write_environment(HANGS)))
    while not began.exists():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.exists()


async def test_package_wants_a_card(tmp_path) -> None:
    package = tmp_path / "probe_package"
    package.mkdir()
    (package / "__init__.py").write_text(f"from envhub import Action, Environment\n{ECHO}")
    assert "no card: write README.md" in (await check_environment(str(package)))["documentation"].detail
    (package / "README.md").write_text("# Probe\n")
    assert (await check_environment(str(package)))["documentation"].status == "pass"


async def test_configuration_of_the_call_is_used() -> None:
    report = await check_environment("guess_number", config={"guesses": 3}, episodes=1)
    assert "after 3 of 32 turns" in report["limits"].detail
    report = await check_environment("guess_number", config={"gusses": 3})
    assert "did you mean 'guesses'?" in report["configuration"].detail


async def test_mistakes_of_the_caller_are_raised() -> None:
    with pytest.raises(NotRegisteredError, match="did you mean 'guess_number'"):
        await check_environment("gess_number")
    with pytest.raises(UserError, match="at least one episode"):
        await check_environment("guess_number", episodes=0)
    with pytest.raises(UserError, match="positive"):
        await check_environment("guess_number", step_seconds=0)


async def test_a_file_that_is_not_there_is_a_failed_import(tmp_path) -> None:
    report = await check_environment(str(tmp_path / "gone.py"))
    assert [result.name for result in report.failures] == ["imports"]
    assert "no such file" in report["imports"].detail


def test_quick_check_imports_configures_and_resets(write_environment) -> None:
    report = quick_check(write_environment(ECHO))
    assert [result.name for result in report.results] == ["imports", "configuration", "reset"]
    with pytest.raises(UserError, match="fails the check 'reset': .*FileNotFoundError: board.txt.*; repair"):
        quick_check(write_environment(RAISES, file="raises.py"))
    with pytest.raises(UserError, match="did you mean 'guesses'"):
        quick_check("guess_number", {"gusses": 1})
    with pytest.raises(NotRegisteredError):
        quick_check("gess_number")


async def test_quick_check_works_inside_a_running_loop() -> None:
    assert quick_check("guess_number").ok
