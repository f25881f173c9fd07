"""What a run says while it goes on: one line a step, and in a terminal a line that lives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rich.console import Console
from rich.status import Status


class Progress:
    """Prints to a console. Never the only record of anything."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(soft_wrap=True, highlight=False)

    def say(self, text: str) -> None:
        """A line."""
        self.console.print(text, markup=False)

    @contextlib.asynccontextmanager
    async def during(self, describe: Callable[[], str]) -> AsyncIterator[None]:
        """Show `describe()` once a second while the block runs, in a terminal; elsewhere show nothing."""
        if not self.console.is_terminal:
            yield
            return
        with self.console.status(describe()) as status:
            job = asyncio.create_task(self._refresh(status, describe))
            try:
                yield
            finally:
                job.cancel()

    @staticmethod
    async def _refresh(status: Status, describe: Callable[[], str]) -> None:
        while True:
            await asyncio.sleep(1.0)
            status.update(describe())
