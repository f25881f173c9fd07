"""The live view: what it shows, that it fits, that hostile text cannot break it, and a run in a real terminal."""

import asyncio
import fcntl
import io
import os
import pty
import re
import signal
import struct
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from envhub.limits import Limits
from envhub.messages import Action, Observation
from envhub.outcome import Outcome
from envhub.rollout import Rollout, Turn
from envhub.tasks import Task
from envhub.trainer.config import resolve
from envhub.trainer.live import LiveProgress, View, progress_for
from envhub.trainer.plan import plan
from envhub.trainer.progress import Progress, StepShown
from envhub.trainer.run import train
from envhub.trainer.text import clipped, printable, sparkline

VALUES = {
    "reward": 0.25, "passed": 0.5, "turns": 1.5, "sampled_tokens": 320.0, "rollouts": 8.0, "kl": 0.0123, "clipped": 0.04,
    "entropy": 2.5, "gradient_norm": 0.7, "tokens_per_second": 64.0, "rollout_seconds": 5.0, "update_seconds": 3.0,
    "transfer_seconds": 0.1, "canary_seconds": 0.2, "step_seconds": 8.3, "truncated": 0.1,
}  # fmt: skip
LEDGER = {"issued": 20, "used": 16, "in_flight": 2, "buffered": 1, "dropped": {"engine": 1}, "retried": {"reward:f": 3}}
HOSTILE = (
    "[bold red]x[/nope] \x1b[2J\x1b[31m\r\n\x07\u202e:smile: 漢字漢字 \u200b e\u0301\ud800 \t\0 \u2028" + "w" * 9_000
)


def rollout(text: str = "the answer is 42") -> Rollout:
    turn = Turn(Action(text), Observation.of("right"), sampled_tokens=3)
    return Rollout(
        "probe", Task("q"), Limits(), Outcome.FINISHED, 1.0, turns=[turn], opening=Observation.of("what is it?")
    )


def shown(view: View, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(view)
    return console.file.getvalue().splitlines()


def view(text: str = "the answer is 42") -> View:
    now = iter(range(10_000))
    live = LiveProgress(Console(file=io.StringIO()), view=View(clock=lambda: float(next(now))))
    live.title("grpo on probe")
    for number in range(3):
        values = VALUES | {"reward": number / 4}
        live.finished(StepShown(number + 1, 6, values, LEDGER, rollout(text)))
    live.evaluated("probe", "before training: reward 0.100 [0.0, 0.2]")
    live.warn("engine and trainer disagree")
    return live.view


def test_it_shows_what_a_step_was_like():
    text = "\n".join(shown(view()))
    for expected in (
        "grpo on probe, step 3 of 6", "0.500 ▁▅█ passed 0.50", "turns 1.5", "40 a rollout", "KL 0.0123", "clipped 0.040",
        "entropy 2.50", "64 sampled tokens a second", "rollouts 5.0, update 3.0, weights 0.1, canary 0.2",
        "reward:f 3", "engine 1", "issued 20, used 16, in flight 2, buffered 1, dropped 1", "held out",
        "0.100 [0.0, 0.2]", "engine and trainer disagree", "reward 1.000, 1 turns", "the answer is 42",
    ):  # fmt: skip
        assert expected in text


async def test_it_shows_each_phase_with_its_share_and_seconds():
    live = LiveProgress(Console(file=io.StringIO()))
    async with live.during(lambda: "5 of 10 rollouts", lambda: 0.5), live.during(lambda: "updating [the] weights"):
        text = "\n".join(shown(live.view))
        assert "█████░░░░░  50% 0 s 5 of 10 rollouts" in text and "updating [the] weights, 0 s" in text
    assert "rollouts" not in "\n".join(shown(live.view))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12), (20, 6), (3, 2), (1, 1)])
def test_it_fits_and_grows_with_the_terminal(width: int, height: int):
    lines = shown(view("line\n" * 50), width, height)
    assert len(lines) <= max(1, height - 4) and all(cell_len(line) < max(2, width) for line in lines)
    assert len(lines) == max(1, height - 4) if height <= 24 else len(lines) > 20


@settings(max_examples=40)
@given(st.text(max_size=300) | st.just(HOSTILE), st.integers(1, 90), st.integers(1, 30))
def test_no_text_breaks_it(text: str, width: int, height: int):
    made = view(text)
    made.warnings.append(text)
    made.title = text
    made.evaluations = {text: (text,)}
    lines = shown(made, width, height)
    assert len(lines) <= max(1, height - 4)
    assert all(cell_len(line) <= max(1, width - 1) and line.isprintable() for line in lines)


def test_markup_and_control_characters_are_shown_and_not_obeyed():
    text = "\n".join(shown(view(HOSTILE.rstrip("w"))))
    assert "[bold red]x[/nope] ·[2J·[31m" in text and ":smile: 漢字漢字" in text and "\x1b" not in text


def test_a_line_that_is_said_is_printed_as_it_is():
    said = io.StringIO()
    Progress(Console(file=said, width=20)).say("[b]:smile:[/b] \x1b[2J " + "w" * 50)
    assert said.getvalue() == "[b]:smile:[/b] ·[2J " + "w" * 50 + "\n"


def test_quiet_keeps_warnings_and_results():
    said = io.StringIO()
    quiet = progress_for(quiet=True, console=Console(file=said, force_terminal=True, color_system=None))
    quiet.say("news")
    quiet.warn("warning")
    quiet.tell("result")
    assert said.getvalue() == "warning\nresult\n"


def test_the_live_view_is_for_terminals_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(progress_for(console=terminal), LiveProgress)
    assert type(progress_for(console=terminal, plain=True)) is Progress
    assert type(progress_for(console=Console(file=io.StringIO()))) is Progress
    monkeypatch.setenv("TERM", "dumb")
    assert type(progress_for(console=terminal)) is Progress


def test_a_curve_of_one_line():
    assert sparkline([0.0, None, 1.0, float("nan")], 10) == "▁ █ "
    assert sparkline([1.0, 1.0], 10) == "▁▁"
    assert sparkline([-1e308, 0.0, 1e308], 10) == "▁▅█"
    assert sparkline([], 10) == sparkline([None], 10) == ""
    assert len(sparkline(list(map(float, range(1000))), 30)) == 30
    assert sparkline([0.0, 1.0], 10, plain=True).isascii()


def test_text_is_made_fit_to_show():
    assert printable("a\tb\nc\x1b") == "a    b·c·"
    assert printable("a\nb", lines=True) == "a\nb"
    assert clipped("one\n two  three", 9) == "one two …"


RUN = """
from envhub.cli.app import main
main(["train", "--env", "guess_number", "--preset", "test", "--steps", "500", "--eval-tasks", "2", "--max-turns", "1",
      "--max-turn-tokens", "4", "--no-tensorboard", "--output", "run"])
"""


def in_a_terminal(folder: Path) -> tuple[int, str]:
    """Exit code and all that a run writes to a terminal, which is made smaller after the first step, and gets a Ctrl-C
    when the view is drawn anew."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        os.execv(sys.executable, [sys.executable, "-c", RUN])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    out, smaller = "", 0
    try:
        while True:
            try:
                out += os.read(terminal, 65536).decode("utf-8", "replace")
            except OSError:
                break
            if not smaller and "step 1/500" in out:
                smaller = len(out)
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 50, 0, 0))
            elif smaller > 0 and "issued" in out[smaller:]:
                smaller = -1
                os.kill(child, signal.SIGINT)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), out


ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.slow
def test_a_run_in_a_terminal_shows_the_view_and_leaves_its_lines(tmp_path: Path):
    code, out = in_a_terminal(tmp_path)
    said = ESCAPE.sub("", out)
    assert code == 130
    assert "reinforce_baseline on guess_number" in said and "issued" in said
    for line in ("run folder: run", "evaluation before training", "step 1/500  reward"):
        assert line in said
    assert "go on with: envhub train --resume run" in said
    assert out.rstrip().splitlines()[-1] == "envhub: interrupted"
    assert out.rfind("\x1b[?25l") < out.rfind("\x1b[?25h")  # the cursor is there at the end


@pytest.mark.slow
def test_a_run_tells_the_view_of_its_evaluations(tmp_path: Path, letters: str):
    told = []

    class Listening(Progress):
        def evaluated(self, environment: str, text: str) -> None:
            told.append((environment, text.split(":")[0]))

    config = resolve({"preset": "test", "env": letters, "output": tmp_path / "run", "steps": 1, "tensorboard": False})
    asyncio.run(train(config, progress=Listening(quiet=True)))
    assert [when for _, when in told] == ["before training", "after training"]
    assert {environment for environment, _ in told} == {plan(config).environment.id}
