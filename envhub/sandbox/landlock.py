"""Landlock: the only files that a process can open, and no TCP, no signal and no abstract socket to the outside.

Imported on both sides, so only the standard library is used, and little of it. Reading what is nowhere allowed fails
with EACCES; names, sizes and times of files can still be asked for.
"""

import ctypes
import os
import sys

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _BELOW_PATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
# rights over files: the bits that each version of the interface came with
_RIGHTS = {1: 0x1FFF, 2: 1 << 13, 3: _TRUNCATE, 5: 1 << 15}
_TCP_VERSION, _TCP_RIGHTS = 4, 0b11
_SCOPE_VERSION, _SCOPES = 6, 0b11

_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
ALL = sum(_RIGHTS.values())
LIST = _READ_DIR
READ = _EXECUTE | _READ_FILE | _READ_DIR
DEVICES = [
    ("/dev/null", _READ_FILE | _WRITE_FILE | _TRUNCATE),
    ("/dev/zero", _READ_FILE),
    ("/dev/random", _READ_FILE),
    ("/dev/urandom", _READ_FILE),
]


def checked(result: int, what: str) -> int:
    """The result of a call of the C library. Raises `OSError` for a negative one."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The version of the kernel's Landlock interface; 0 where there is none, or it is switched off."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_library().syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)))


def make_ruleset(version: int, rules: "list[tuple[str, int]]") -> int:
    """A descriptor of what is allowed: for each path, some rights over it and all that is below it.

    `version` is from 1 to `abi()`. Paths that are not there are left out. Raises `OSError`.
    """
    libc = _library()
    handled = sum(rights for since, rights in _RIGHTS.items() if since <= version)
    words = [handled]
    words += [_TCP_RIGHTS] if version >= _TCP_VERSION else []
    words += [_SCOPES] if version >= _SCOPE_VERSION else []
    attributes = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
    ruleset = checked(libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset")
    for path, rights in rules:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights &= handled if os.path.isdir(path) else handled & _OF_FILES
        rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        try:
            checked(libc.syscall(_ADD_RULE, ruleset, _BELOW_PATH, rule, 0), f"landlock_add_rule of {path}")
        finally:
            os.close(place)
    return ruleset


def restrict(ruleset: int) -> None:
    """Hold this process and its children to a ruleset, for good. Needs `no_new_privs`. Raises `OSError`."""
    checked(_library().syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
