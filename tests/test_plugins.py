"""What packages publish is found by name, loaded when it is asked for, and breaks nothing but itself."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from envhub import plugins, registry
from envhub.agents.engines import choose_engine, make_engine
from envhub.agents.engines.scripted import ScriptedEngine
from envhub.agents.parsers import HermesParser, get_parser
from envhub.errors import NotRegisteredError, UserError
from envhub.rewards import Reward

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a package on the path that is nothing but its metadata."""

    def write(
        package: str, points: str | None = None, *, version: str = "1.0", folder: str = "site", **groups: str
    ) -> Path:
        site = tmp_path / folder
        info = site / f"{package}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = [f"[envhub.{group}]\n{entry}" for group, entry in groups.items()]
        (info / "entry_points.txt").write_text(points if points is not None else "\n".join(lines) + "\n")
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        return site

    return write


def test_the_groups_of_the_project_are_the_ones_that_are_read() -> None:
    assert {group for group in PUBLISHED if group.startswith("envhub.")} == set(plugins.GROUPS)


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group, points in PUBLISHED.items() if group.startswith("envhub.") for name in points],
)
def test_every_bundled_part_imports(group: str, name: str) -> None:
    if group == plugins.ALGORITHMS:
        pytest.importorskip("torch")
    assert name in plugins.names(group)
    assert plugins.owner_of(plugins.entries(group)[name]) == "envhub"
    assert plugins.load(group, name) is not None


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(NotRegisteredError, match="no engine named 'scriptd'; there are .*did you mean 'scripted'"):
        plugins.load(plugins.ENGINES, "scriptd")
    with pytest.raises(NotRegisteredError, match="no parser named 'hermis'.*did you mean 'hermes'"):
        get_parser("hermis")
    with pytest.raises(NotRegisteredError, match="no engine named"):
        make_engine("zzz", "model")
    with pytest.raises(NotRegisteredError, match="there are none"):
        plugins.load("envhub.things", "x")


def test_an_object_is_named_by_its_module_or_file(tmp_path: Path) -> None:
    assert plugins.load(plugins.PARSERS, "envhub.agents.parsers:HermesParser") is HermesParser
    file = tmp_path / "own_reward.py"
    file.write_text("from envhub import reward\n@reward(weight=2.0)\ndef half(text):\n    return 0.5\n")
    found = plugins.load(plugins.REWARDS, f"{file}:half")
    assert isinstance(found, Reward)
    assert found.weight == 2.0
    with pytest.raises(UserError, match="has no 'hlaf'; did you mean 'half'"):
        plugins.load(plugins.REWARDS, f"{file}:hlaf")
    with pytest.raises(UserError, match="does not import"):
        plugins.load(plugins.REWARDS, "no_such_module_here:x")


def test_what_is_published_is_found(publish) -> None:
    site = publish("other-parsers", parsers="shout = shouting_parser:ShoutParser")
    (site / "shouting_parser.py").write_text(
        "from envhub.agents.parsers import Parsed, Parser\n"
        "class ShoutParser(Parser):\n    def parse(self, text):\n        return Parsed(text.upper())\n"
    )
    assert "shout" in plugins.names(plugins.PARSERS)
    assert plugins.owner_of(plugins.entries(plugins.PARSERS)["shout"]) == "other-parsers"
    assert get_parser("shout").parse("hello").text == "HELLO"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (None, "ModuleNotFoundError"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("def broken(:", "SyntaxError"),
        ("import sys\nsys.exit(2)", "SystemExit: 2 .*line 2"),
        ("x = 1", "AttributeError"),
    ],
)
def test_a_plugin_that_does_not_import_breaks_only_itself(publish, source: str | None, problem: str) -> None:
    module = f"broken_by_{problem.partition(':')[0].lower()}"
    site = publish("broken-package", engines=f"broken = {module}:Engine", environments=f"broken_env = {module}:Env")
    if source is not None:
        (site / f"{module}.py").write_text(source)
    assert "broken" in plugins.names(plugins.ENGINES)
    with pytest.raises(UserError, match=f"engine 'broken' of package 'broken-package' does not import: {problem}"):
        make_engine("broken", "model")
    with pytest.raises(UserError):
        registry.make("broken_env")
    assert isinstance(make_engine("scripted", "null"), ScriptedEngine)
    assert registry.make("guess_number") is not None


@pytest.mark.parametrize(
    "points",
    [
        "[envhub.engines]\nno target at all\n",
        "[envhub.engines]\n= x:y\n",
        "stray = a:b\n",
        "\x00",
        "[envhub.engines\nx = y:z",
    ],
)
def test_broken_metadata_breaks_only_its_package(publish, points: str) -> None:
    publish("broken-metadata", points)
    publish("good-package", engines="good = envhub.agents.engines.scripted:ScriptedEngine")
    assert {"good", "scripted"} <= set(plugins.names(plugins.ENGINES))
    assert isinstance(make_engine("good", "null"), ScriptedEngine)


def test_a_published_name_that_is_no_id_hides_no_environment(publish) -> None:
    publish("odd-names", environments="not an id! = a.b:C\nodd = not a target")
    assert registry.spec("guess_number").id == "guess_number"
    with pytest.raises(UserError):
        registry.spec("odd").load()


def test_a_target_may_name_extras(publish) -> None:
    publish("with-extras", environments="guess_again = envhub.environments.guess_number:GuessNumberEnvironment [fast]")
    found = registry.spec("guess_again")
    assert found.source == "with-extras"
    assert found.make().name == "guess_number"


def test_the_bundled_part_wins_over_another_package_of_the_name(publish) -> None:
    publish("pretender", engines="scripted = nowhere:Engine")
    assert plugins.load(plugins.ENGINES, "scripted") is ScriptedEngine


def test_the_installation_that_python_imports_is_the_one_that_counts(publish) -> None:
    publish("twice", version="1.0", folder="later", parsers="old = nowhere:Old")
    publish("twice", version="2.0", folder="earlier", parsers="new = nowhere:New")
    assert {"old", "new"} & set(plugins.names(plugins.PARSERS)) == {"new"}


def test_an_engine_that_is_none_is_refused(publish) -> None:
    publish("no-engine", engines="none = builtins:str")
    with pytest.raises(UserError, match="engine 'none' is no envhub Engine but str; repair its package"):
        make_engine("none", "model")


def test_reading_names_imports_nothing(publish) -> None:
    site = publish("side-effects", environments="loud = loud_module:Env", engines="loud = loud_module:Engine")
    (site / "loud_module.py").write_text("raise SystemExit('imported')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from envhub import plugins, registry\n"
        "found = [name for group in plugins.GROUPS for name in plugins.names(group)]\n"
        "assert found.count('loud') == 2 and 'loud' in registry.all_specs(), found\n"
        "heavy = ('torch', 'transformers', 'vllm', 'loud_module', 'envhub.agents', 'envhub.environments', 'envhub.trainer')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_auto_is_an_engine_that_is_published() -> None:
    assert choose_engine("auto") in plugins.names(plugins.ENGINES)
    assert choose_engine("scripted") == "scripted"
