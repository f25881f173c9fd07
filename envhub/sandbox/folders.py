"""The working directory of a candidate: measured while it runs, removed afterwards.

Imported by the supervisor, so only the standard library is used, and little of it.
"""

import os
import stat


def remove_tree(directory: str) -> None:
    """Remove `directory` whatever is in it, at any depth: nested directories are moved up, never recursed into."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    os.fchmod(top, 0o700)
    while names := os.listdir(top):
        for name in names:
            try:
                os.unlink(name, dir_fd=top)
                continue
            except IsADirectoryError:
                os.chmod(name, 0o700, dir_fd=top)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            for child in os.listdir(inner):
                try:
                    os.unlink(child, dir_fd=inner)
                except IsADirectoryError:
                    os.chmod(child, 0o700, dir_fd=inner)
                    os.rename(child, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=top)
            os.close(inner)
            os.rmdir(name, dir_fd=top)
    os.close(top)
    os.rmdir(directory)


def unlinked(pids: "list[int]", device: int) -> int:
    """The bytes of files on a device that have no name any more, and that these processes have open."""
    sizes = {}
    for pid in pids:
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    status = os.stat(entry.path)
                    if not status.st_nlink and stat.S_ISREG(status.st_mode) and status.st_dev == device:
                        sizes[status.st_ino] = status.st_blocks * 512
        except OSError:  # it has ended, or closed the file meanwhile
            continue
    return sum(sizes.values())


def over_quota(directory: str, megabytes: int, size: int = 0) -> bool:
    """Whether `directory` holds more than that beside `size` bytes, or over 4096 entries; it may change meanwhile."""
    if size > megabytes << 20:
        return True
    todo, count = [directory], 0
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if count > 4096 or size > megabytes << 20:
                        return True
        except OSError:
            continue
    return False
