"""Trackers: services that show runs beside each other. They get the scalars that TensorBoard gets."""

import asyncio
import contextlib
import importlib
import queue
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envhub.errors import MissingExtraError, UserError
from envhub.guard import text_of
from envhub.home import write_atomically
from envhub.records import read_json
from envhub.strict_json import dumps
from envhub.trainer.progress import Progress

FILE = "trackers.json"
_ROOM = 1000  # rows that wait for a slow tracker
_STARTING, _CLOSING = 120.0, 60.0  # seconds


class Identity(BaseModel):
    """By what a tracker knows a run: a run that goes on keeps it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str = Field(min_length=1)
    id: str = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Shown:
    """A run that a tracker shows `at` some place: `log` sends the scalars of a step, `finish` says whether it failed."""

    at: str
    log: Callable[[Mapping[str, float], int], object]
    finish: Callable[[bool], object]


class Service(Protocol):
    """Begins, or goes on, to show a run: its identity, its folder, its configuration."""

    def __call__(self, known: Identity, folder: Path, config: Mapping[str, Any]) -> Shown: ...


def _wandb(known: Identity, folder: Path, config: Mapping[str, Any]) -> Shown:
    wandb: Any = importlib.import_module("wandb")
    if wandb.setup().settings.mode in ("online", "shared") and not wandb.login(prompt=False, verify=False):
        raise UserError(
            "it has no key: run `wandb login`, or set WANDB_MODE=offline"
        )  # rather than be asked in a live view
    run = wandb.init(
        project=known.project, id=known.id, name=folder.name, resume="allow", dir=str(folder), config=dict(config),
        settings=wandb.Settings(console="off", silent=True),
    )  # fmt: skip
    at = str(run.dir) if run.offline else str(run.url)
    return Shown(at, lambda scalars, step: run.log(dict(scalars), step=step), lambda failed: run.finish(int(failed)))


def _trackio(known: Identity, folder: Path, config: Mapping[str, Any]) -> Shown:
    trackio: Any = importlib.import_module("trackio")
    name = f"{folder.name}-{known.id}"  # it knows a run by its name
    run = trackio.init(project=known.project, name=name, resume="allow", config=dict(config), embed=False)
    at = f"{name} of project {known.project}"
    return Shown(at, lambda scalars, step: run.log(dict(scalars), step=step), lambda failed: run.finish())


SERVICES: Mapping[str, Service] = {"wandb": _wandb, "trackio": _trackio}


def refuse_missing(names: Sequence[str]) -> None:
    """Raise MissingExtraError for a tracker whose package is not installed."""
    for name in names:
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder of that name, such as a tracker's own, is no package
            raise MissingExtraError(f"--track {name}", "tracking")


class Tracker:
    """Sends the scalars of a run to a service from a thread of its own.

    Whoever writes never waits: a row that finds `_ROOM` rows waiting is dropped. Nothing that the service raises gets out
    after the start; the first of it is a warning, and all rows that did not arrive are counted at the end.
    """

    def __init__(self, name: str, begin: Callable[[], Shown], warn: Callable[[str], object]) -> None:
        """`begin` is called in the thread; `warn` is given lines in the caller's."""
        self.name, self._begin, self._warn = name, begin, warn
        self._rows: queue.SimpleQueue[tuple[int, Mapping[str, float]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._begun = threading.Event()
        self._problem: BaseException | None = None
        self._written, self._sent = 0, 0
        self._failed, self._warned = False, False
        self.at = ""

    async def start(self) -> None:
        """Wait until the service shows the run. Raises UserError where it does not."""
        self._thread.start()
        begun = await _true(self._begun.is_set, _STARTING)
        if not begun or self._problem is not None:
            said = _said(self._problem) if begun else f"it did not answer in {_STARTING:g} s"
            raise UserError(f"the tracker {self.name} cannot show this run: {said}; leave it out to train without it")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Let the scalars of a step be sent, without waiting for it."""
        self._written += 1
        if self._rows.qsize() < _ROOM:
            self._rows.put((step, scalars))
        self._warn_once()

    async def close(self, *, failed: bool) -> None:
        """Wait a while for what is to be sent, and say what was not."""
        self._failed = failed
        self._rows.put(None)
        if not await _true(lambda: not self._thread.is_alive(), _CLOSING) and self._problem is None:
            self._problem = TimeoutError(f"it did not take the last rows in {_CLOSING:g} s")
        self._warn_once()
        if lost := self._written - self._sent:
            self._warn(f"warning: {lost} of {self._written} rows of metrics did not reach the tracker {self.name}")

    def _warn_once(self) -> None:
        if self._problem is not None and not self._warned:
            self._warned = True
            self._warn(f"warning: the tracker {self.name} fails, training goes on: {_said(self._problem)}")

    def _work(self) -> None:
        try:
            shown = self._begin()
            self.at = shown.at
        except BaseException as problem:  # whatever its library raises, SystemExit too
            self._problem = problem
            return
        finally:
            self._begun.set()
        while (row := self._rows.get()) is not None:
            step, scalars = row
            if self._attempt(lambda: shown.log(scalars, step)):  # noqa: B023
                self._sent += 1
        self._attempt(lambda: shown.finish(self._failed))

    def _attempt(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except BaseException as problem:
            if self._problem is None:
                self._problem = problem
            return False
        return True


async def _true(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for something that another thread does; returns whether it did. A thread that waits would hold up Ctrl-C."""
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return found


def _said(problem: BaseException | None) -> str:
    return " ".join(text_of(problem).split())[:500] or type(problem).__name__


@dataclass(slots=True)
class Trackers:
    """The trackers of a run."""

    items: list[Tracker] = field(default_factory=list)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Let each send the scalars of a step."""
        for tracker in self.items:
            tracker.write(step, scalars)


@contextlib.asynccontextmanager
async def tracked(
    names: Sequence[str], project: str, folder: Path, config: Mapping[str, Any], progress: Progress, *, resumed: bool
) -> AsyncIterator[Trackers]:
    """While the block runs, trackers by name show the run of a folder, and go on where they have shown it before.

    Raises UserError for one that cannot be started; for a run that is `resumed` that is a warning.
    """
    trackers = Trackers()
    failed = True
    try:
        for name, known in _identities(folder, names, project).items():
            tracker = Tracker(name, _beginning(name, known, folder, config), progress.warn)
            try:
                async with progress.during(lambda: f"starting the tracker {name}"):  # noqa: B023
                    await tracker.start()
            except UserError as problem:
                if not resumed:
                    raise
                progress.warn(f"warning: {problem}")
                continue
            trackers.items.append(tracker)
            progress.say(f"tracker {name}: {tracker.at}")
        yield trackers
        failed = False
    finally:
        for tracker in trackers.items:
            async with progress.during(lambda: f"the tracker {tracker.name} takes the last rows"):  # noqa: B023
                await tracker.close(failed=failed)


def _beginning(name: str, known: Identity, folder: Path, config: Mapping[str, Any]) -> Callable[[], Shown]:
    return lambda: SERVICES[name](known, folder.resolve(), config)


def _identities(folder: Path, names: Sequence[str], project: str) -> dict[str, Identity]:
    """By what each tracker knows the run: what the folder keeps, or new, which it keeps from now on. Raises UserError."""
    if not names:
        return {}
    file = folder / FILE
    try:
        kept = {
            name: Identity.model_validate(value) for name, value in (read_json(file) if file.exists() else {}).items()
        }
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"])) or "an entry"
        raise UserError(
            f"{file} is damaged: {where}: {first['msg']}; remove it to let the trackers show a new run"
        ) from None
    chosen = {}
    for name in names:
        old = kept.get(name)
        if old is None or old.project != project:
            old = Identity(project=project, id=uuid.uuid4().hex[:8])
        chosen[name] = old
    if (known := kept | chosen) != kept:
        write_atomically(file, dumps({name: identity.model_dump() for name, identity in known.items()}, indent=2))
    return chosen
