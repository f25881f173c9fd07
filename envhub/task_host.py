"""Run coroutines of user code on the event loop, in a task that can be given up."""

import asyncio
import contextlib
import inspect
import os
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from envhub.errors import DeadlineError, EnvhubError, EnvironmentFault
from envhub.guard import EscapeError, described, is_interruption, raised_at, raised_by_runner

T = TypeVar("T")

_ENDED = "code of an environment, a reward or a tool ended the run from a task of its own,"
_REMEDY = "repair it, or set isolation = 'process' on the environment, whose code then runs apart"


class TaskHost:
    """One task that runs calls in order on the event loop. All calls of one host run in the same task, so that what one
    call enters (a cancel scope, a context variable) a later one may leave.

    At a deadline, or when the caller is cancelled, the task is cancelled. One that does not end within a grace, because
    its code swallows the cancellation, is abandoned: `abandoned` is set, the loop no longer waits for it at its end, and
    further calls raise DeadlineError at once.
    """

    abandoned_total = 0

    def __init__(self, grace: float = 2.0) -> None:
        """`grace` is how many seconds a cancelled call has to end."""
        self._calls: asyncio.Queue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._grace = grace
        self._closed = False
        self.abandoned = False

    async def call(self, function: Callable[..., Any], *args: Any, deadline: float, what: str, **kwargs: Any) -> Any:
        """Call `function` and await what it returns; DeadlineError naming `what` after `deadline` seconds.

        What it raises is raised here; what is no Exception, such as SystemExit, as an EscapeError.
        """
        if self.abandoned:
            raise DeadlineError(f"{what}: an earlier call ignores its cancellation and still runs")
        if self._closed:
            raise EnvironmentFault(f"{what}: its task is closed")
        if self._task is None or self._task.done():
            caller = asyncio.current_task()
            self._calls = asyncio.Queue()
            self._task = asyncio.create_task(_serve(self._calls), name=None if caller is None else caller.get_name())
        task = self._task
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait((lambda: function(*args, **kwargs), future))
        place = ""
        try:
            async with asyncio.timeout(deadline):
                try:
                    return await future
                except asyncio.CancelledError:
                    place = waits_at(task)
                    raise
        except TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()
            await self._end(task)
            stuck = "; it ignores its cancellation and was abandoned" if self.abandoned else ""
            raise DeadlineError(f"{what} did not return within {deadline:g} s{place}{stuck}") from None
        except asyncio.CancelledError:
            await self._end(task)
            raise

    def close(self) -> None:
        """Let the task end after the calls it has."""
        self._closed = True
        self._calls.put_nowait(None)

    async def _end(self, task: "asyncio.Task[None]") -> None:
        task.cancel()
        loop = asyncio.get_running_loop()
        until, again = loop.time() + self._grace, None
        while not task.done() and (left := until - loop.time()) > 0:
            try:
                await asyncio.wait({task}, timeout=left)
            except asyncio.CancelledError as cancelled:  # what the grace is for holds all the same
                again = cancelled
        if not task.done():
            self.abandoned = True
            TaskHost.abandoned_total += 1
            _forsake(task)
        if again is not None:
            raise again


class BackgroundWarning(UserWarning):
    """User code failed in a task or a callback that nobody waits for."""


def run(main: Coroutine[Any, Any, T], grace: float = 2.0) -> T:
    """As `asyncio.run`, but user code on the loop cannot end it without a word.

    Tasks that `main` leaves behind are cancelled; those that do not end within `grace` seconds are abandoned, and
    counted. What fails in the background is a BackgroundWarning. Raises EnvhubError where a task of user code ends the
    loop: by SystemExit, by stopping it, or by cancelling what it has not started.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(_warn)
        try:
            return runner.run(main)
        except asyncio.CancelledError as problem:
            raise EnvhubError(f"{_ENDED} by cancelling the run's own; {_REMEDY}") from problem
        except (SystemExit, KeyboardInterrupt) as problem:
            if isinstance(problem, KeyboardInterrupt) and raised_by_runner(problem):
                raise
            raise EnvhubError(f"{_ENDED} by {described(problem)}{raised_at(problem)}; {_REMEDY}") from problem
        except RuntimeError as problem:
            if str(problem) != "Event loop stopped before Future completed.":
                raise
            raise EnvhubError(f"{_ENDED} by stopping the event loop; {_REMEDY}") from problem
        finally:
            _finish(loop, grace)


def _finish(loop: asyncio.AbstractEventLoop, grace: float) -> None:
    until, told = loop.time() + grace, set[asyncio.Task[Any]]()
    while (left := asyncio.all_tasks(loop)) and (seconds := until - loop.time()) > 0:
        for task in left - told:
            task.cancel()
        told |= left
        with contextlib.suppress(SystemExit, KeyboardInterrupt, RuntimeError):  # each may end the loop once more
            loop.run_until_complete(asyncio.wait(left, timeout=seconds))
    for task in told:
        if not task.done():
            TaskHost.abandoned_total += 1
            _forsake(task)
        elif not task.cancelled():
            task.exception()  # of a task that nobody waits for: what its code left behind is no error of the run


def _warn(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    problem = context.get("exception")
    if problem is None:
        warnings.warn(f"in the background: {context.get('message')}", BackgroundWarning, 2)
    else:
        text = f"in the background, where no rollout waits for it: {described(problem)}{raised_at(problem)}"
        warnings.warn(text, BackgroundWarning, 2)


def _forsake(task: "asyncio.Task[Any]") -> None:
    """Let a loop, and the interpreter, end without a task that cannot be ended."""
    import ctypes

    asyncio._unregister_task(task)  # or the loop would wait for it when it is closed
    # Never freed: freeing a coroutine throws GeneratorExit into it, and code that swallows everything would spin on it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


async def _serve(calls: "asyncio.Queue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]") -> None:
    while (item := await calls.get()) is not None:
        function, future = item
        value = problem = None
        try:
            value = function()
            if inspect.isawaitable(value):
                value = await value
        except BaseException as caught:  # handed over to the awaiting task, which re-raises it
            settle(future, None, caught)
            if is_interruption(caught):
                raise
            if isinstance(caught, GeneratorExit):  # perhaps the loop's own, which takes no further await
                return
            problem = caught
        settle(future, value, problem)
        if _is_cancelling():  # by the host, or by the code itself: either way the task is of no more use
            future.cancelled() or future.exception()  # nobody may be there any more to hear of it
            return


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def waits_at(task: "asyncio.Task[Any]") -> str:
    """`" (it waits at file:line in function)"` for the innermost coroutine that a task waits in, or an empty string."""
    waiting: Any = task.get_coro()
    place = ""
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(os.path.dirname(asyncio.__file__)):
            place = f" (it waits at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name})"
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return place


def settle(future: "asyncio.Future[Any]", value: Any, problem: BaseException | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(value)
    elif isinstance(problem, Exception) and not isinstance(problem, StopIteration):
        future.set_exception(problem)
    else:  # none of these may travel through a future: they would end the loop or look like a cancellation
        future.set_exception(EscapeError(problem))
