"""Importing what users name: whatever it raises is told with its file and line."""

from pathlib import Path

import pytest

from envhub.errors import UserError
from envhub.specs import load_environment, load_module, load_object

SOURCES = {
    "import sys\nsys.exit('done')\n": r"SystemExit: done \(line 2\)$",
    "raise BaseException\n": r"BaseException \(line 1\)$",
    "import asyncio\n\nraise asyncio.CancelledError('x')\n": r"CancelledError: x \(line 3\)$",
    "raise GeneratorExit\n": r"GeneratorExit \(line 1\)$",
    "def deeper():\n    deeper()\n\n\ndeeper()\n": r"RecursionError: .* \(line 2\)$",
    "import no_such_module_of_a_test\n": r"ModuleNotFoundError: .* \(line 1\)$",
    "class Odd(Exception):\n    def __str__(self):\n        return 1 / 0\n\n\nraise Odd\n": r"Odd: .*\(line 6\)$",
    "\nopen('no such file')\n": r"FileNotFoundError: .*no such file.* \(line 2\)$",
    "x = (\n": r"SyntaxError: .*own\.py, line 1\)$",
    "x = '\0'\n": r"(SyntaxError|ValueError): ",
}


@pytest.mark.parametrize("source", SOURCES)
def test_whatever_a_file_raises_names_it_and_the_line(tmp_path: Path, source: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(source)
    for load, place in ((load_module, path), (load_object, f"{path}:x"), (load_environment, f"{path}:x")):
        with pytest.raises(UserError, match=f"{path} does not import: {SOURCES[source]}"):
            load(place)  # type: ignore[operator]


def test_a_file_that_another_one_imports_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helper_of_a_test.py").write_text("\nimport sys; sys.exit(4)\n")
    (tmp_path / "module_of_a_test.py").write_text("import helper_of_a_test\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = tmp_path / "helper_of_a_test.py"
    with pytest.raises(UserError, match=rf"module_of_a_test does not import: SystemExit: 4 \({helper}, line 2\)"):
        load_module("module_of_a_test")
    with pytest.raises(UserError, match=r"module_of_a_test.py does not import: SystemExit: 4 \(line 1\)"):
        load_module(tmp_path / "module_of_a_test.py")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot load {tmp_path}/none.py: No such file"):
        load_module(tmp_path / "none.py")
    with pytest.raises(UserError, match="no_such_module_here does not import: ModuleNotFoundError: [^(]*$"):
        load_module("no_such_module_here")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("name = 3", "name is a text such as 'my_env', not 3"),
        ("name = ''", "name is a text"),
        ("Config = 3", "Config is a class that derives from EnvironmentConfig, not 3"),
        ("class Config: pass", "Config is a class that derives from EnvironmentConfig"),
    ],
)
def test_a_class_with_a_name_or_configuration_that_is_none_is_refused(tmp_path: Path, body: str, problem: str) -> None:
    (tmp_path / "own.py").write_text(f"from envhub import Environment\nclass Own(Environment):\n    {body}\n")
    with pytest.raises(UserError, match=f"own.py:Own: {problem}"):
        load_environment(f"{tmp_path / 'own.py'}:Own")


def test_ctrl_c_while_a_file_is_imported_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    with pytest.raises(KeyboardInterrupt):
        load_module(tmp_path / "own.py")
