"""Which files of the machine a submission may read: the interpreter, its standard library and what these load."""

import functools
import glob
import os
import ssl
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass

from envhub.sandbox import landlock
from envhub.sandbox.landlock import ALL, DEVICES, LIST, READ

_SYSTEM = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64",
    "/usr/share/zoneinfo", "/usr/share/locale",
)  # fmt: skip
_TOOLS = (
    "/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/share", "/usr/include", "/usr/local/bin",
    "/usr/local/libexec", "/usr/local/share", "/usr/local/include", "/etc/alternatives",
)  # fmt: skip
_USER = "sandbox"
_SYSTEM_FILES = ("/etc/localtime", "/etc/ld.so.cache", "/etc/mime.types")


@dataclass(frozen=True)
class Places:
    """Folders with all that is below them, folders of which the names alone may be listed, and single files.

    All of them are in `tops` or below. `hidden` are folders in `tops` that no submission may see.
    """

    tops: tuple[str, ...]
    folders: tuple[str, ...]
    listed: tuple[str, ...]
    files: tuple[str, ...]
    hidden: tuple[str, ...] = ()


def search_path() -> str:
    """Where programs of a session are looked for, as the variable PATH."""
    return os.pathsep.join(dict.fromkeys((_own_programs(), "/usr/local/bin", "/usr/bin", "/bin")))


def _own_programs() -> str:
    """The folder of the interpreter, links followed."""
    return os.path.dirname(os.path.realpath(sys.executable))


@functools.cache
def readable_places(*, tools: bool = False) -> Places:
    """What a submission may read; with `tools`, the machine's programs too, and what belongs to them.

    Installed packages of Python are no part of it: envhub's own hold the solutions of tasks. A folder that holds such packages is given by its other entries, links left out.
    """
    stdlib = os.path.realpath(os.path.dirname(os.__file__))
    dynamic = [path for path in sys.path if os.path.basename(path) == "lib-dynload"]
    more = (*_TOOLS, _own_programs()) if tools else ()
    tops = {
        os.path.realpath(path) for path in (*_SYSTEM, os.path.join(sys.base_prefix, "lib"), stdlib, *dynamic, *more)
    }
    sites = [path for path in sys.path if path not in dynamic and not path.endswith(".zip")]
    sites += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), "/usr/lib/python3"]
    sites += [os.path.join(place, name) for place in (stdlib, *tops) for name in ("site-packages", "dist-packages")]
    sites += [path for top in tops for name in ("site", "dist") for path in glob.glob(f"{top}/python*/{name}-packages")]
    sites += [os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 2)]
    hidden = {os.path.realpath(path) for path in sites} - tops
    hidden = {path for path in hidden if not any(_below(top, path) for top in tops)}

    folders: set[str] = set()
    listed: set[str] = set()
    single = {os.path.realpath(sys.executable), *_SYSTEM_FILES}
    single |= {os.path.join(os.path.dirname(ssl.get_default_verify_paths().openssl_cafile), "openssl.cnf")}
    files = set(single)
    todo = sorted(tops)
    while todo:
        path = todo.pop()
        if path in hidden or not os.path.isdir(path):
            continue
        if not any(_below(place, path) for place in hidden):
            folders.add(path)
            continue
        listed.add(path)
        try:
            entries = list(os.scandir(path))
        except OSError:  # a folder that nobody but another user may list
            continue
        todo += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        files |= {entry.path for entry in entries if entry.is_file(follow_symlinks=False)}
    inside = sorted(path for path in hidden if any(_below(path, top) for top in tops))
    return Places(
        tops=(*sorted(tops), *sorted(single)), folders=tuple(sorted(folders)), listed=tuple(sorted(listed)),
        files=tuple(sorted(files)), hidden=tuple(inside),
    )  # fmt: skip


def root_layout(*, tools: bool = False, users: Iterable[int] | None = None) -> dict[str, list[str]]:
    """What a root of its own shows of the machine: `tops`, without what is `hidden`, and `links` that lead there.

    `texts` are the names of files of its own and what they hold, in turn: where `users` are given, those that name them.
    """
    places = readable_places(tools=tools)
    return {
        "tops": [path for path in places.tops if not any(_below(path, top) for top in places.tops)],
        "hidden": list(places.hidden),
        "links": [path for path in (*_SYSTEM, *(_TOOLS if tools else ())) if os.path.islink(path)],
        "texts": []
        if users is None
        else [
            "/etc/passwd",
            "".join(f"{_USER}:x:{uid}:{uid}::/tmp:/bin/bash\n" for uid in users),
            "/etc/group",
            "".join(f"{_USER}:x:{uid}:\n" for uid in users),
        ],
    }


def shared_ruleset(version: int, parent: str, *, tools: bool = False) -> int:
    """A ruleset for every submission that works somewhere below `parent`; its descriptor stays open.

    There may be hundreds of rules, so they are made once for a folder, which is told from a later one of its name.
    `own_rules` take the rest of `parent` away again. Raises `OSError`.
    """
    status = os.stat(parent)
    return _shared(version, parent, status.st_dev, status.st_ino, tools)


@functools.cache
def _shared(version: int, parent: str, device: int, inode: int, tools: bool) -> int:
    os.open(parent, os.O_PATH | os.O_CLOEXEC)  # never closed: while it is open, no other folder gets its inode
    return landlock.make_ruleset(version, [(parent, ALL), *DEVICES, *_read_rules(tools=tools)])


def own_rules(folder: str, *, tools: bool = False) -> list[tuple[str, int]]:
    """What a submission that works in `folder` is held to beside the shared ruleset."""
    places, parent = readable_places(tools=tools), os.path.dirname(folder)
    apart = not any(_below(top, parent) or _below(parent, top) or top == parent for top in places.tops)
    return [(folder, ALL), *DEVICES, *([(top, READ) for top in places.tops] if apart else _read_rules(tools=tools))]


def _read_rules(*, tools: bool) -> list[tuple[str, int]]:
    places = readable_places(tools=tools)
    readable = [(path, READ) for path in (*places.folders, *places.files)]
    return readable + [(path, LIST) for path in places.listed]


def _below(path: str, top: str) -> bool:
    return path.startswith(f"{top.rstrip('/')}/")
