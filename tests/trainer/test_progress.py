"""What a run says while it goes on."""

import asyncio
import io

from rich.console import Console

from envhub.trainer.progress import Progress
from envhub.trainer.text import middled


async def test_what_takes_long_says_so_where_there_is_no_terminal():
    said = io.StringIO()
    progress = Progress(Console(file=said, soft_wrap=True), quiet_seconds=0.02)
    counts = iter(range(100))
    async with progress.during(lambda: f"{next(counts)} of 100 [not markup]"):
        while said.getvalue().count("\n") < 2:
            await asyncio.sleep(0.01)
    assert said.getvalue().splitlines()[:2] == ["… 0 of 100 [not markup]", "… 1 of 100 [not markup]"]


async def test_what_is_quick_says_nothing():
    said = io.StringIO()
    async with Progress(Console(file=said)).during(lambda: "never"):
        await asyncio.sleep(0)
    assert said.getvalue() == ""


def test_names_that_begin_alike_stay_apart_when_they_are_cut():
    names = [f"guess_number/{'a' * 100}/{number}" for number in range(2)]
    cut = [middled(name, 40) for name in names]
    assert [len(name) for name in cut] == [40, 40] and cut[0].endswith("/0") and cut[1].endswith("/1")
    assert middled("short", 40) == "short" and middled("abcdef", 3) == "a…f"
