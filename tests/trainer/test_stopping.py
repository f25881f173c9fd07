"""What is awaited whole comes to its end, whatever is cancelled meanwhile."""

import asyncio

import pytest

from envhub.trainer.stopping import whole


async def test_a_job_ends_before_its_cancellation_is_raised():
    done, hurried = [], asyncio.Event()

    async def job() -> int:
        await asyncio.wait_for(hurried.wait(), 10)
        await asyncio.sleep(0)
        done.append(1)
        return 1

    task = asyncio.create_task(whole(job(), hurry=hurried.set))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]


async def test_what_a_job_returns_or_raises_is_passed_on():
    async def job(fails: bool) -> int:
        if fails:
            raise ValueError("why")
        return 3

    assert await whole(job(False)) == 3
    with pytest.raises(ValueError, match="why"):
        await whole(job(True))
