"""Names that say whose a thing is, so that what a killed process left is found and removed by the next."""

import os
from pathlib import Path


def label() -> str:
    """This process in a name: the namespace of its number, its number, and when it began."""
    return _label_of(os.getpid())


def is_gone(name: str) -> bool:
    """Whether the process of a name that `label` ended, but for one more part, is gone. False for those of other namespaces."""
    parts = name.split("-")[-4:-1]
    if len(parts) != 3 or not parts[1].isdigit() or parts[0] != str(_namespace()):
        return False
    try:
        return "-".join(parts) != _label_of(int(parts[1]))
    except OSError:  # such as too many open files: nothing is known of it
        return False


def _label_of(pid: int) -> str:
    """The label of a process; empty where it is gone. Raises OSError where that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if status[0] == "Z" else f"{_namespace()}-{pid}-{status[19]}"


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
