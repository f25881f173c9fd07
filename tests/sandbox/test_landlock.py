"""What a submission can read of the host, and what it still can import."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import envhub.environments.sandbox_code as sandbox_code
from envhub.sandbox import CallResult, ProcessSandbox, RunOutcome, SandboxLimits, landlock, places

ROOMY = SandboxLimits(wall_seconds=60.0, cpu_seconds=20)
CONFINED = pytest.mark.skipif(landlock.abi() < 1, reason="this kernel has no Landlock")
READ = """
def f(path):
    try:
        with open(path, "rb") as file:
            return len(file.read(100))
    except OSError as error:
        return type(error).__name__
"""
WALK = """
import os
import shutil
def f(suffix):
    found = []
    for top in ("/", "..", "/proc/self/root", "/tmp"):
        for place, _, names in os.walk(top):
            found += [os.path.join(place, name) for name in names if name.endswith(suffix)]
    return [path for path in found if readable(path)]
def readable(path):
    try:
        return open(path, "rb").read(1) is not None
    except OSError:
        return False
"""


@pytest.fixture
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that every user of the machine may read."""
    folder = tmp_path_factory.mktemp("open")
    opened = [place for place in (folder, *folder.parents) if place.stat().st_uid == os.getuid()]
    modes = {place: place.stat().st_mode for place in opened}
    for place in opened:
        place.chmod(modes[place] | 0o055)
    file = folder / "tasks.jsonl"
    file.write_text('{"canonical_solution": "return 42"}\n')
    file.chmod(0o644)
    yield file
    for place in opened:
        place.chmod(modes[place])


async def call(source: str, *arguments: object) -> CallResult:
    return (await ProcessSandbox(concurrency=2).calls(source, "f", [arguments], ROOMY))[0]


@CONFINED
async def test_a_file_that_everybody_may_read_is_out_of_reach(secret: Path) -> None:
    assert (await call(READ, str(secret))).value == "PermissionError"
    assert (await call(READ, f"/proc/self/root{secret}")).value == "PermissionError"
    assert (await call(WALK, ".jsonl")).value == []


@CONFINED
async def test_a_file_is_not_reached_by_links_or_descriptors(secret: Path) -> None:
    source = READ + (
        "import os\ndef g(path):\n    tries = [path]\n    for make in (os.link, os.symlink):\n"
        "        try:\n            make(path, make.__name__)\n            tries.append(make.__name__)\n"
        "        except OSError: pass\n"
        "    for fd in range(3, 64):\n        tries.append(f'/proc/self/fd/{fd}' + '/..' * 9 + path)\n"
        "    return [f(path) for path in tries]\n"
    )
    result = (await ProcessSandbox(concurrency=2).calls(source, "g", [[str(secret)]], ROOMY))[0]
    assert result.value[0] == "PermissionError"
    assert set(result.value) <= {"PermissionError", "FileNotFoundError", "NotADirectoryError"}


@CONFINED
@pytest.mark.parametrize(
    "path",
    [
        str(Path(sandbox_code.__file__).resolve().parent / "tasks.py"),
        str(Path(sandbox_code.__file__).resolve().parent / "bank" / "level_1.py"),
        str(Path(landlock.__file__).with_name("child.py")),
        "/etc/passwd", "/proc/self/environ", "/proc/self/maps", "/proc/1/environ", "/proc/1/cmdline", "/proc/1/status",
    ],
)  # fmt: skip
async def test_the_hub_and_the_host_cannot_be_read(path: str) -> None:
    assert (await call(READ, path)).value in ("PermissionError", "FileNotFoundError")


@CONFINED
async def test_other_programs_cannot_be_started() -> None:
    source = (
        "import subprocess\ndef f():\n    try: subprocess.run(['/bin/cat', '/etc/passwd'])\n"
        "    except OSError as error: return type(error).__name__"
    )
    assert (await call(source)).value in ("PermissionError", "FileNotFoundError")


@CONFINED
async def test_packages_beside_the_standard_library_cannot_be_read() -> None:
    for package in ("pydantic", "pytest"):
        file = sys.modules[package].__file__
        assert (await call(READ, file)).value in ("PermissionError", "FileNotFoundError")


LATE = [
    "import decimal, json, fractions, statistics; return decimal.Decimal('1.10') > fractions.Fraction(1) and json.loads('\"ok\"')",
    "import hashlib, hmac, ssl, secrets, uuid; hashlib.sha256(b'x'); hashlib.new('md5'); uuid.uuid1(); return 'ok'",
    "import sqlite3; sqlite3.connect('x.db').execute('create table t (a)'); return 'ok'",
    "import encodings.cp1252, unicodedata; return 'é'.encode('cp1252') and unicodedata.name('é') and 'ok'",
    "import bz2, lzma, zlib, ctypes, ctypes.util; ctypes.CDLL(None); ctypes.util.find_library('c'); return 'ok'",
    "import concurrent.futures as c; return c.ThreadPoolExecutor(2).submit(lambda: 'ok').result()",
    "import tempfile; t = tempfile.TemporaryFile(); t.write(b'ok'); t.seek(0); return t.read().decode()",
    "import mimetypes, locale, gettext, email.message; mimetypes.guess_type('a.txt'); return 'ok'",
    "import os; open('/dev/null', 'w').write('x'); open(os.devnull).read(); return 'ok'",
    "import xml.etree.ElementTree as e, html.parser, csv, difflib; return e.fromstring('<a>ok</a>').text",
    "import random, os; open('/dev/urandom', 'rb').read(4); os.urandom(4); return random.choice(['ok'])",
    "import importlib; importlib.invalidate_caches(); import bisect, graphlib, tomllib, wave; return 'ok'",
    "import os; os.makedirs('a/b'); os.rename('a/b', 'c'); os.rmdir('a'); return 'ok'",
    "import sys, os, multiprocessing; assert multiprocessing.cpu_count() > 0; return 'ok'",
]


@pytest.mark.parametrize("body", LATE)
async def test_the_standard_library_can_be_imported_late(body: str) -> None:
    result = await call(f"def f():\n    {body}")
    assert (result.outcome, result.value) == (RunOutcome.ok, "ok"), result.error


@pytest.mark.skipif(not Path("/usr/share/zoneinfo/Asia/Tokyo").exists(), reason="no time zones installed")
async def test_time_zones_can_be_loaded() -> None:
    source = "def f():\n    import zoneinfo, datetime\n    return datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('Asia/Tokyo')).utcoffset().seconds"
    assert (await call(source)).value == 9 * 3600


async def test_a_program_may_open_its_standard_streams_by_name() -> None:
    source = "print(open('/dev/stdin').read(), flush=True)\nopen('/dev/stdout', 'w').write('b')"
    if os.geteuid() == 0:  # the streams belong to another user than the program's
        source = "import os\nprint(os.fdopen(0).read(), flush=True)\nos.write(1, b'b')"
    run = await ProcessSandbox(concurrency=2).run_program(source, "a")
    assert (run.outcome, run.stdout) == (RunOutcome.ok, "a\nb")


@CONFINED
async def test_a_library_that_lies_beside_the_work_folders_is_not_opened_up_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "package"
    package.mkdir(parents=True)
    place = places.Places((str(tmp_path),), (), (str(tmp_path),), ())
    monkeypatch.setattr(places, "readable_places", lambda **_: place)
    given = dict(places.own_rules(str(tmp_path / "work")))
    assert given[str(tmp_path)] == landlock.LIST
    given = dict(places.own_rules(str(tmp_path.parent / "work")))
    assert given[str(tmp_path)] == landlock.LIST


def test_places_hold_the_standard_library_and_nothing_that_is_installed() -> None:
    found = places.readable_places()
    json = Path(os.__file__).resolve().parent / "json"
    installed = Path(pytest.__file__).resolve()
    readable = [Path(path) for path in (*found.folders, *found.files)]
    assert any(json.is_relative_to(path) for path in readable)
    assert not any(installed.is_relative_to(path) for path in readable)
    assert not any(Path(landlock.__file__).is_relative_to(path) for path in readable)


async def test_without_landlock_the_sandbox_works_and_promises_less(
    monkeypatch: pytest.MonkeyPatch, secret: Path, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    probes = {probe.name: probe for probe in await ProcessSandbox(concurrency=2).self_test()}
    assert not probes["host files unreadable"].promised
    assert "Landlock" in probes["host files unreadable"].detail


@CONFINED
async def test_a_temporary_folder_may_be_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "work"
    monkeypatch.setattr("tempfile.tempdir", str(place))
    source = "import os\ndef f():\n    open('x', 'w').close()\n    return os.listdir('.')\n"
    for _ in range(2):
        place.mkdir()
        result = await call(source)
        assert result.value == ["x"], result
        shutil.rmtree(place)
