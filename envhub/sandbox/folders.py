"""The working directory of a candidate: measured while it runs, removed afterwards.

Imported by the supervisor, so only the standard library is used, and little of it.
"""

import os


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


def over_quota(directory: str, megabytes: int) -> bool:
    """Whether `directory` holds more than that, or over 4096 entries; it may change while it is looked at."""
    todo, size, count = [directory], 0, 0
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
