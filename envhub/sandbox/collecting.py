"""What killed processes left of their sandboxes, found by the names it has."""

import contextlib
import tempfile
from pathlib import Path

from envhub.sandbox import cgroups, leases
from envhub.sandbox.box import FOLDERS
from envhub.sandbox.folders import remove_tree


def collect() -> list[Path]:
    """Remove the cgroups and working directories of processes that are gone; returns what was removed."""
    slots = cgroups.abandoned()
    for folder in slots:
        cgroups.remove(folder)
    folders = [place for place in Path(tempfile.gettempdir()).glob(f"{FOLDERS}-*") if leases.is_gone(place.name)]
    for place in folders:
        with contextlib.suppress(OSError):  # its supervisor may be removing it
            remove_tree(str(place))
    return [place for place in (*slots, *folders) if not place.exists()]
