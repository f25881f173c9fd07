"""TensorBoard event files, written without a thread: what cannot be written is an error where it happens."""

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

_NUMBERS = itertools.count()


class EventFile:
    """A file of scalars in a folder, which TensorBoard reads beside those of earlier processes. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self._file = (folder / name).open("wb")
        self._event, self._records = Event, RecordWriter(self._file)
        self._records.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        self._file.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step; they are in the file when this returns."""
        from torch.utils.tensorboard.summary import scalar

        for name, value in scalars.items():
            event = self._event(wall_time=time.time(), step=step, summary=scalar(name, value))  # type: ignore[no-untyped-call]
            self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
