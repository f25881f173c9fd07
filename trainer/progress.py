"""What a run says while it goes on: one line a step; `envhub.trainer.live` shows more where there is a terminal."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from envhub.console import SturdyConsole
from envhub.rollout import Rollout
from envhub.trainer.text import printable


@dataclass(frozen=True, slots=True)
class StepShown:
    """What a finished step was like: its metrics (the names of `metrics.jsonl`), the ledger, and one of its rollouts."""

    step: int
    steps: int
    values: Mapping[str, Any]
    ledger: Mapping[str, Any]
    rollout: Rollout | None = None


class Progress:
    """Prints lines to a console. Never the only record of anything. With `quiet`, only warnings and results."""

    def __init__(self, console: Console | None = None, quiet_seconds: float = 30.0, *, quiet: bool = False) -> None:
        """`quiet_seconds` is how long something may go on without a line that says so."""
        self.quiet_seconds, self.quiet = quiet_seconds, quiet
        self.console = console or SturdyConsole(soft_wrap=True, highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def ascii_only(self) -> bool:
        """Whether the console can show no more than ASCII."""
        return self.console.options.ascii_only

    def say(self, text: str) -> None:
        """A line of news."""
        if not self.quiet:
            self._print(text)

    def warn(self, text: str) -> None:
        """A line about something that went wrong, or may."""
        self._print(text)

    def tell(self, text: str) -> None:
        """A line about what the run leaves."""
        self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(Text(printable(text, lines=True)), soft_wrap=True)

    def title(self, text: str) -> None:
        """What this run is, in a few words. Lines do not show it."""

    def finished(self, step: StepShown) -> None:
        """A step is done. Lines do not show it: a line of its own is said."""

    def evaluated(self, environment: str, text: str) -> None:
        """The newest evaluation on an environment. Lines do not show it: a line of its own is said."""

    @contextlib.asynccontextmanager
    async def during(
        self, describe: Callable[[], str], share: Callable[[], float] | None = None
    ) -> AsyncIterator[None]:
        """While the block runs, say a line with `describe()` each `quiet_seconds`. `share` is how much of it is done."""
        job = asyncio.create_task(_repeat(lambda: self.say(f"… {describe()}"), self.quiet_seconds))
        try:
            yield
        finally:
            job.cancel()


async def _repeat(action: Callable[[], None], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        action()
