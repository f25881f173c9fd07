"""The tiers of other users than root, where the tests run as root: this folder's tests again, as another user."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

NOBODY = 65_534
TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests of these tiers run as they are")
def test_the_tiers_of_other_users_keep_what_they_promise(tmp_path_factory: pytest.TempPathFactory) -> None:
    python = f"/usr/bin/python{sysconfig.get_python_version()}"
    if not os.access(python, os.X_OK):
        pytest.skip(f"no {python}, which other users may run")
    place = tmp_path_factory.mktemp("nobody")
    for folder in (place, *place.parents[:2]):  # pytest's own are closed to others
        folder.chmod(0o755)
    os.chown(place, NOBODY, NOBODY)
    files = ("test_sessions.py", "test_languages.py", "test_process.py")
    paths = [str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    ran = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT),
         "--basetemp", str(place / "t"), "-k", "userns", *(str(TESTS / name) for name in files)],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd=place, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(place), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    if "No module named pytest" in ran.stderr or "Permission denied" in ran.stderr:
        pytest.skip(f"another user may not read the installed packages: {ran.stderr[-200:]}")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert " passed" in ran.stdout
