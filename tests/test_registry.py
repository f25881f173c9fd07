"""Ids, versions, paths, and a user's registry that processes share."""

import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import envhub
from envhub import Environment, UserError, make, register, spec
from envhub.environments.guess_number import GuessNumberEnvironment
from envhub.errors import ConfigError, NotRegisteredError
from envhub.registry import (
    RegistryWarning,
    all_specs,
    as_spec,
    content_hash,
    parse_id,
    registry_file,
    unregister,
    user_specs,
)

SOURCE = """
from envhub import Environment, EnvironmentConfig
class Echo(Environment):
    class Config(EnvironmentConfig):
        size: int = 1
        label: object = None
    def reset(self, *, seed=None, options=None):
        return "hello", {}
    def step(self, action):
        return "again", 0.0, False, False, {}
"""


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    """What a test registers for its process is forgotten after it."""
    before = set(all_specs())
    yield
    monkeypatch.setenv("ENVHUB_HOME", str(tmp_path_factory.mktemp("empty")))
    for id in set(all_specs()) - before:
        unregister(id)


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    path = tmp_path / "echo_file.py"
    path.write_text(SOURCE)
    return path


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_what_is_registered_is_found_made_and_forgotten(echo: Path) -> None:
    made = register("echo", str(echo), config={"size": 3})
    assert (made.id, made.source, made.config) == ("echo", "user", {"size": 3})
    assert made.target == f"{echo}:Echo"
    assert spec("echo") == made
    assert make("echo").config.size == 3
    assert make("echo", size=5).config.size == 5
    assert as_spec(made) is made
    assert unregister("echo") == made
    with pytest.raises(NotRegisteredError, match="no environment named 'echo'"):
        spec("echo")


@pytest.mark.parametrize(
    ("id", "parsed"),
    [
        ("env", ("env", None)),
        ("env-v2", ("env", 2)),
        ("my.space/my-env-v10", ("my.space/my-env", 10)),
        ("env-v", ("env-v", None)),
        ("v1", ("v1", None)),
    ],
)
def test_ids_are_read(id: str, parsed: tuple[str, int | None]) -> None:
    assert parse_id(id) == parsed


@pytest.mark.parametrize(
    "id", ["", "two words", "a/b/c", "-v1", "/env", "env/", "a:b", "env\n", "./env", "../env", "env.py", ".hidden"]
)
def test_what_is_no_id_is_refused(id: str, echo: Path) -> None:
    with pytest.raises(UserError, match="no environment id"):
        register(id, str(echo))


def test_the_newest_version_is_meant_where_none_is_said(echo: Path) -> None:
    for id in ("versioned-v2", "versioned-v10", "versioned"):
        register(id, str(echo))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spec("versioned").id == "versioned-v10"
        assert spec("versioned-v10").id == "versioned-v10"
    with pytest.warns(RegistryWarning, match="versioned-v2 is not the newest version: there is versioned-v10"):
        assert spec("versioned-v2").id == "versioned-v2"
    with pytest.raises(NotRegisteredError, match="no version 3; registered: versioned, versioned-v10, versioned-v2"):
        spec("versioned-v3")


def test_a_namespace_is_part_of_the_name(echo: Path) -> None:
    register("ours/env-v1", str(echo))
    register("theirs/env-v2", str(echo))
    assert spec("ours/env").id == "ours/env-v1"
    with pytest.raises(NotRegisteredError):
        spec("env")
    with pytest.raises(NotRegisteredError, match="no version 2"):
        spec("ours/env-v2")


def test_an_unknown_name_gets_the_nearest_one_or_all() -> None:
    with pytest.raises(NotRegisteredError, match="'sandbx_code'; did you mean 'sandbox_code'"):
        spec("sandbx_code")
    with pytest.raises(NotRegisteredError, match="registered: .*guess_number"):
        spec("zzz")
    with pytest.raises(NotRegisteredError, match="no environment 'zzz' in the user's registry"):
        unregister("zzz")


def test_bundled_environments_are_there_and_cannot_be_unregistered() -> None:
    found = spec("guess_number")
    assert (found.source, found.load()) == ("bundled", GuessNumberEnvironment)
    with pytest.raises(UserError, match="'guess_number' comes with envhub and cannot be removed"):
        unregister("guess_number")


def test_files_and_folders_work_in_place_of_ids(echo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(echo.parent)
    for name in (str(echo), f"{echo}:Echo", "echo_file.py", "./echo_file.py", "echo_file.py:Echo"):
        assert (spec(name).id, spec(name).target) == ("echo", f"{echo}:Echo")
    assert make("echo_file.py", size=2).config.size == 2
    with pytest.raises(UserError, match="there is no such file or folder"):
        spec("./missing.py")
    with pytest.raises(UserError, match="has no 'Ecko'; did you mean 'Echo'"):
        spec("echo_file.py:Ecko")


@pytest.mark.parametrize(
    "place", ["my_env/__init__.py", "__init__.py", "src/my_env/__init__.py", "my_env.py", "other.py"]
)
def test_a_folder_is_searched_for_its_environment(tmp_path: Path, place: str, monkeypatch) -> None:
    file = tmp_path / "my-env" / place
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    (tmp_path / "my-env" / "test_it.py").write_text("assert False")
    assert spec(str(tmp_path / "my-env")).target == f"{file}:Echo"
    monkeypatch.chdir(tmp_path)
    assert spec("my-env").target == f"{file}:Echo"


def test_a_package_shows_the_environment_of_its_module(tmp_path: Path) -> None:
    package = tmp_path / "shown"
    package.mkdir()
    (package / "environment.py").write_text(SOURCE)
    (package / "__init__.py").write_text("from .environment import Echo as Echo\n")
    found = spec(str(package))
    assert found.target == f"{package / '__init__.py'}:Echo"
    before = found.content_hash
    (package / "environment.py").write_text(SOURCE + "\n# changed")
    assert spec(str(package)).content_hash != before
    again = as_spec(found.load())
    assert again.target == found.target


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = 1", "defines no environment class; write one that derives from envhub.Environment"),
        ("from envhub.environments.guess_number import GuessNumberEnvironment", "defines no environment class"),
        (SOURCE + "class Other(Echo): pass", r"defines 2 environments \(Echo, Other\); name one: .*:Echo"),
        ("def broken(:", "does not import: SyntaxError"),
        ("import missing_module_of_a_test", "does not import: ModuleNotFoundError"),
        ("raise ValueError('at import')", "does not import: ValueError: at import"),
    ],
)
def test_files_that_cannot_be_used_say_why(tmp_path: Path, source: str, problem: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(source)
    with pytest.raises(UserError, match=problem):
        spec(str(path))


def test_folders_that_hold_no_environment_say_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name the file"):
        spec(str(tmp_path))


def test_targets_that_are_no_environment_are_refused(echo: Path) -> None:
    for target, problem in (
        ("nowhere", "expected 'module:name'"),
        ("no_such_module_here:Thing", "does not import"),
        ("envhub.tasks:Task", "is not an Environment class"),
        ("envhub.tasks:Tisk", "did you mean 'Task'"),
    ):
        with pytest.raises(UserError, match=problem):
            register("refused", target)
    with pytest.raises(ConfigError, match="did you mean 'size'"):
        register("refused", str(echo), config={"siez": 2})
    assert "refused" not in all_specs()


def test_a_class_is_registered_by_the_module_that_defines_it() -> None:
    made = register("by_class", GuessNumberEnvironment)
    assert made.load() is GuessNumberEnvironment
    assert made.target.endswith(":GuessNumberEnvironment")
    assert as_spec(GuessNumberEnvironment).id == "guess_number"


def test_a_class_in_a_function_is_refused() -> None:
    class Local(Environment):
        pass

    with pytest.raises(UserError, match="defined in a function"):
        register("local", Local)


def test_a_class_of_a_script_is_registered_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        SOURCE + "if __name__ == '__main__':\n import envhub\n envhub.register('scripted', Echo, persist=True)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert spec("scripted").target == f"{script}:Echo"
    done = run_python(SOURCE + "import envhub; envhub.register('typed_in', Echo)")
    assert "UserError: Echo is in no file" in done.stderr


def test_what_is_persisted_is_found_by_other_processes(echo: Path) -> None:
    done = run_python(
        "import sys, envhub; envhub.register('kept', sys.argv[1], config={'size': 4}, persist=True)", str(echo)
    )
    assert done.returncode == 0, done.stderr
    assert make("kept").config.size == 4
    assert run_python("import envhub; print(envhub.make('kept').config.size)").stdout == "4\n"
    unregister("kept")
    assert "did you mean" not in run_python("import envhub; envhub.spec('kept')").stderr
    assert user_specs() == {}


def test_this_process_goes_before_the_users_registry(echo: Path) -> None:
    register("both", str(echo), config={"size": 1}, persist=True)
    register("both", str(echo), config={"size": 2})
    assert spec("both").config == {"size": 2}
    unregister("both")
    assert spec("both").config == {"size": 1}
    unregister("both")
    assert "both" not in all_specs()


def _register_some(number: int, path: str, home: str) -> None:
    os.environ["ENVHUB_HOME"] = home
    for index in range(5):
        envhub.register(f"many_{number}_{index}", path, persist=True)


def test_registrations_at_one_time_lose_nothing(echo: Path) -> None:
    context = multiprocessing.get_context("fork")
    home = os.environ["ENVHUB_HOME"]
    workers = [context.Process(target=_register_some, args=(n, str(echo), home)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert set(user_specs()) == {f"many_{n}_{i}" for n in range(8) for i in range(5)}
    assert [item.name for item in Path(home).iterdir() if item.name.startswith(".")] == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"environments": []}',
        '{"environments": {"x": 3}}',
        '{"environments": {"x": {}}}',
        '{"environments": {"x": {"target": 3}}}',
        '{"environments": {"x": {"target": "a:b", "config": [1]}}}',
        '{"environments": {"no id": {"target": "a:b"}}}',
        "\xff",
    ],
)
def test_a_damaged_registry_is_named(text: str, echo: Path) -> None:
    registry_file().write_bytes(text.encode("latin-1"))
    for use in (lambda: spec("guess_number"), lambda: register("x", str(echo), persist=True), lambda: unregister("x")):
        with pytest.raises(UserError, match=r"registry .*registry\.json"):
            use()
    assert registry_file().read_bytes() == text.encode("latin-1")


def test_a_registry_that_cannot_be_written_is_named(echo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVHUB_HOME", str(echo / "below_a_file"))
    with pytest.raises(UserError, match="echo_file.py/below_a_file"):
        register("x", str(echo), persist=True)


def test_a_configuration_that_cannot_be_kept_is_refused(echo: Path) -> None:
    with pytest.raises(UserError, match="the configuration of 'odd' cannot be kept"):
        register("odd", str(echo), config={"label": {1, 2}}, persist=True)
    assert user_specs() == {}
    assert register("odd", str(echo), config={"label": {1, 2}}).config == {"label": {1, 2}}


def test_a_changed_source_is_noticed(echo: Path) -> None:
    made = register("changing", str(echo), persist=True)
    echo.write_text(SOURCE.replace("hello", "good day"))
    with pytest.warns(RegistryWarning, match="'changing' has changed since it was registered; check it again"):
        found = spec("changing")
    assert found.content_hash == content_hash(made.target) != made.content_hash
    assert found.make().reset(seed=1)[0] == "good day"
    register("changing", str(echo), persist=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec("changing")


def test_a_source_that_is_gone_is_named(echo: Path) -> None:
    register("gone", str(echo), persist=True)
    echo.unlink()
    with pytest.raises(UserError, match="which is gone; register it anew, or forget it: envhub unregister gone"):
        spec("gone")
    assert spec("guess_number").id == "guess_number"
    unregister("gone")


def test_a_package_that_no_longer_imports_is_a_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "outer_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    register("outer", "outer_of_test.inner:Echo", persist=True)
    (package / "__init__.py").write_text("raise RuntimeError('broken since')")
    done = run_python("import sys, envhub; sys.path.insert(0, sys.argv[1]); envhub.spec('outer')", str(tmp_path))
    assert "UserError: environment 'outer' was registered from outer_of_test.inner:Echo, which is gone" in done.stderr


def test_the_file_is_readable_json(echo: Path) -> None:
    made = register("plain", str(echo), config={"size": 2}, persist=True)
    assert json.loads(registry_file().read_text())["environments"] == {
        "plain": {"target": f"{echo}:Echo", "config": {"size": 2}, "content_hash": made.content_hash}
    }


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "x" * 200, "a b"])
def test_a_file_whose_environment_has_no_fit_name_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(f"from envhub import Environment\nclass Odd(Environment):\n    name = {name!r}\n")
    with pytest.raises(
        UserError, match=r"odd.py:Odd: the name .* is no environment id; write a name like my_env"
    ) as found:
        envhub.spec(str(file))
    assert str(found.value).isprintable() and len(str(found.value)) < 400
