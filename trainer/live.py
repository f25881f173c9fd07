"""The live view of a training run in a terminal."""

import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from envhub.console import SturdyConsole
from envhub.rollout import Rollout
from envhub.trainer.progress import Progress, StepShown
from envhub.trainer.text import conversation, printable, sparkline

_LABEL = 11
_KEPT = 3  # warnings
_BESIDE = 4  # lines of the terminal that are left to what was said
_FRAMES_A_SECOND = 2.0
_STEPS = 1_000
_WIDEST = 500  # characters of a line that are looked at


def progress_for(*, plain: bool = False, quiet: bool = False, console: Console | None = None) -> Progress:
    """The live view where the console is a terminal that can draw one; lines elsewhere, with `plain`, and with `quiet`."""
    console = console or SturdyConsole(soft_wrap=True, highlight=False)
    if plain or quiet or not console.is_terminal or console.is_dumb_terminal:
        return Progress(console, quiet=quiet)
    return LiveProgress(console)


@dataclass(frozen=True, slots=True)
class Phase:
    """Something that goes on now, and since when."""

    describe: Callable[[], str]
    share: Callable[[], float] | None
    begun: float


@dataclass(slots=True)
class View:
    """What is drawn: as many lines as the terminal has room for, each cut to its width, whatever a rollout holds.

    All text is plain: markup in it is shown and not obeyed. Values are replaced whole, so that another thread may draw.
    """

    clock: Callable[[], float] = time.monotonic
    title: str = "training"
    last: StepShown | None = None
    rewards: deque[float | None] = field(default_factory=lambda: deque(maxlen=_STEPS))
    evaluations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    warned: int = 0
    phases: dict[int, Phase] = field(default_factory=dict)
    begun: float = field(init=False)

    def __post_init__(self) -> None:
        self.begun = self.clock()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - 1)  # a full last column would wrap in some terminals
        room = max(1, console.size.height - _BESIDE)
        plain = options.ascii_only
        lines = list(itertools.islice(self._lines(width, plain), room))
        rest = room - len(lines)
        if rest > 1 and self.last is not None and self.last.rollout is not None:
            lines += _sample(self.last.rollout, rest, width)
        for line in lines:
            line.no_wrap = True
            line.truncate(width, overflow="crop" if plain else "ellipsis")
            yield line

    def _lines(self, width: int, plain: bool) -> Iterator[Text]:
        yield self._header(width, plain)
        for phase in list(self.phases.values()):
            yield _row("now", self._now(phase, plain), "cyan")
        if self.last is not None:
            yield from _step(self.last, list(self.rewards), width, plain)
        for environment, said in list(self.evaluations.items()):
            yield _row("held out", f"{environment} {said[-1]}")
        for number, text in enumerate(list(self.warnings)):
            more = f" ({self.warned} in all)" if not number and self.warned > _KEPT else ""
            yield _row("warning", text + more, "yellow")

    def _header(self, width: int, plain: bool) -> Text:
        step = "" if self.last is None else f", step {self.last.step} of {self.last.steps}"
        text = f"{printable(self.title[:_WIDEST])}{step}, {_clock(self.clock() - self.begun)} "
        return Text(text + ("-" if plain else "─") * max(0, width - cell_len(text)), "bold")

    def _now(self, phase: Phase, plain: bool) -> str:
        elapsed = _clock(self.clock() - phase.begun)
        if phase.share is None:
            return f"{phase.describe()}, {elapsed}"
        share = min(1.0, max(0.0, phase.share()))
        full = round(10 * share)
        bar = ("#" if plain else "█") * full + ("." if plain else "░") * (10 - full)
        return f"{bar} {share:4.0%} {elapsed} {phase.describe()}"


def _step(shown: StepShown, rewards: list[float | None], width: int, plain: bool) -> Iterator[Text]:
    values, ledger = shown.values, shown.ledger
    curve = sparkline(rewards, max(8, min(60, width - 52)), plain=plain)
    yield _row("reward", f"{_number(values, 'reward', 3)} {curve} passed {_number(values, 'passed', 2)}", "green")
    rollouts = max(1.0, float(values.get("rollouts") or 0.0))
    each = float(values.get("sampled_tokens") or 0.0) / rollouts
    yield _row(
        "lengths",
        f"turns {_number(values, 'turns', 1)}, sampled tokens {each:.0f} a rollout, {_number(values, 'sampled_tokens', 0)} "
        f"in all, cut off {_number(values, 'truncated', 2)}",
    )
    yield _row(
        "policy",
        f"KL {_number(values, 'kl', 4)}, clipped {_number(values, 'clipped', 3)}, entropy {_number(values, 'entropy', 2)}, "
        f"gradient {_number(values, 'gradient_norm', 2)}",
    )
    yield _row("speed", f"{_number(values, 'tokens_per_second', 0)} sampled tokens a second")
    phases = {"rollouts": "rollout", "update": "update", "weights": "transfer", "canary": "canary", "step": "step"}
    timed = (f"{name} {_number(values, f'{key}_seconds', 1)}" for name, key in phases.items())
    yield _row("seconds", ", ".join(timed))
    yield _row(
        "faults", _counts(ledger.get("retried", {}), "tried again") + _counts(ledger.get("dropped", {}), "dropped")
    )
    places = ("issued", "used", "in_flight", "buffered")
    counted = [f"{place.replace('_', ' ')} {ledger.get(place, 0)}" for place in places]
    yield _row("ledger", ", ".join([*counted, f"dropped {sum(ledger.get('dropped', {}).values())}"]))


def _counts(counts: Mapping[str, int], what: str) -> str:
    shown = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"{what}: {shown or 'none'}  "


def _sample(rollout: Rollout, room: int, width: int) -> list[Text]:
    """The end of a rollout in `room` lines: a headline, and the last lines of its conversation."""
    head = (
        f"a rollout of {printable(rollout.task.id[:_WIDEST])}: reward {rollout.reward:.3f}, {len(rollout.turns)} turns"
    )
    lines: list[Text] = []
    for role, text in reversed(conversation(rollout)):
        if len(lines) >= room - 1:
            break
        parts = [part for line in text.splitlines() for part in _folded(line, max(1, width - _LABEL))] or [""]
        if role == "user":
            parts = parts[:3] + ["…"] * (len(parts) > 3)
        own = [_row(role if not number else "", part) for number, part in enumerate(parts)]
        lines = own + lines
    return [Text(head, "bold"), *lines[-(room - 1) :]]


def _folded(line: str, width: int) -> list[str]:
    """A line in pieces of at most `width` cells, 20 of them at most."""
    pieces, piece, used = [], "", 0
    for char in line:
        size = cell_len(char)
        if used + size > width:
            pieces.append(piece)
            piece, used = "", 0
            if len(pieces) == 20:
                return [*pieces[:-1], "…"]
        piece, used = piece + char, used + size
    return [*pieces, piece]


def _row(label: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), (printable(text[:_WIDEST]), style))


def _number(values: Mapping[str, Any], name: str, digits: int) -> str:
    value = values.get(name)
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 60 else f"{whole} s"


class LiveProgress(Progress):
    """Draws the view below the lines that are said, and takes it away at the end: the lines stay in the scrollback.

    A context: what is drawn is drawn inside of it.
    """

    def __init__(self, console: Console, *, view: View | None = None) -> None:
        super().__init__(console)
        self.view = view or View()
        self._numbers = itertools.count()
        self._live = Live(
            console=console, get_renderable=lambda: self.view, refresh_per_second=_FRAMES_A_SECOND, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        self.console.show_cursor(True)  # so that a process that is killed leaves a terminal that can be used
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def warn(self, text: str) -> None:
        self.view.warned += 1
        self.view.warnings.append(text)
        super().warn(text)

    def title(self, text: str) -> None:
        self.view.title = text

    def finished(self, step: StepShown) -> None:
        self.view.rewards.append(step.values.get("reward"))
        self.view.last = step

    def evaluated(self, environment: str, text: str) -> None:
        before = self.view.evaluations.get(environment, ())
        self.view.evaluations = {**self.view.evaluations, environment: (*before[-1:], text)}

    @contextlib.asynccontextmanager
    async def during(
        self, describe: Callable[[], str], share: Callable[[], float] | None = None
    ) -> AsyncIterator[None]:
        """Show `describe()` and `share()` as long as the block runs; several blocks are shown below each other."""
        number = next(self._numbers)
        self.view.phases = {**self.view.phases, number: Phase(describe, share, self.view.clock())}
        try:
            yield
        finally:
            self.view.phases = {key: phase for key, phase in self.view.phases.items() if key != number}
