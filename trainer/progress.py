"""What a run says while it goes on: one line a step, and in a terminal a line that lives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rich.console import Console


class Progress:
    """Prints to a console. Never the only record of anything."""

    def __init__(self, console: Console | None = None, quiet_seconds: float = 30.0) -> None:
        self.quiet_seconds = quiet_seconds
        self.console = console or Console(soft_wrap=True, highlight=False)

    def say(self, text: str) -> None:
        """A line."""
        self.console.print(text, markup=False)

    @contextlib.asynccontextmanager
    async def during(self, describe: Callable[[], str]) -> AsyncIterator[None]:
        """Show `describe()` while the block runs: each second in a terminal, elsewhere as a line each `quiet_seconds`."""
        with contextlib.ExitStack() as stack:
            if self.console.is_terminal:
                status = stack.enter_context(self.console.status(describe()))
                job = asyncio.create_task(_repeat(lambda: status.update(describe()), 1.0))
            else:
                job = asyncio.create_task(_repeat(lambda: self.say(f"… {describe()}"), self.quiet_seconds))
            try:
                yield
            finally:
                job.cancel()


async def _repeat(action: Callable[[], None], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        action()
