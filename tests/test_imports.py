"""The layers: who may import whom, read from the sources, and what `import envhub` loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("agents", "environments", "servers", "trainer", "cli")
MAY_IMPORT = {
    "envhub": set(),
    "agents": {"agents"},
    "environments": {"environments"},
    "servers": {"agents", "servers"},
    "trainer": {"agents", "trainer"},
    "cli": set(LAYERS),
}
HEAVY = ("torch", "transformers", "vllm", "gymnasium", "PIL", "numpy", "typer", "rich", "aiohttp", "math_verify")


def _sources(layer: str) -> list[Path]:
    if layer == "envhub":
        own = [path for path in (ROOT / "envhub").rglob("*.py") if "__pycache__" not in path.parts]
        return [path for path in own if path.relative_to(ROOT / "envhub").parts[0] not in LAYERS]
    folder = ROOT / "envhub" / "cli" if layer == "cli" else ROOT / layer
    return [path for path in folder.rglob("*.py") if "tests" not in path.relative_to(folder).parts]


def _module(path: Path) -> str:
    """The long name of a source file's package (what a relative import starts from)."""
    parts = path.relative_to(ROOT).parts[:-1]
    return ".".join(parts if parts[0] == "envhub" else ("envhub", *parts))


def imported(source: str, package: str) -> set[str]:
    """The modules that a source imports, also inside of functions and for type checks; names in strings do not count."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*start, base] if base else start)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def layers_of(modules: set[str]) -> set[str]:
    """The layers, other than `envhub` itself, that modules belong to."""
    split = [name.split(".") for name in modules]
    return {parts[1] for parts in split if parts[0] == "envhub" and len(parts) > 1 and parts[1] in LAYERS}


def test_the_reader_of_imports_finds_every_form() -> None:
    source = (
        "import envhub.agents.session as s\n"
        "def f():\n    from envhub import trainer\n"
        "from ..servers import x\nfrom . import y\nname = 'envhub.environments.z'\n"
    )
    assert layers_of(imported(source, "envhub.cli")) == {"agents", "cli", "servers", "trainer"}
    assert layers_of(imported("from ..servers import x", "envhub.records.deeper")) == set()
    assert layers_of(imported("from ..servers import x", "envhub.records")) == {"servers"}
    assert layers_of(imported("from . import agents", "envhub")) == {"agents"}


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_what_stands_below_it(layer: str) -> None:
    sources = _sources(layer)
    assert sources
    wrong = {
        str(path.relative_to(ROOT)): sorted(extra)
        for path in sources
        if (extra := layers_of(imported(path.read_text(encoding="utf-8"), _module(path))) - MAY_IMPORT[layer])
    }
    assert wrong == {}


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_modules_are_imported_by_their_long_names(layer: str) -> None:
    short = {
        str(path.relative_to(ROOT))
        for path in _sources(layer)
        for name in imported(path.read_text(encoding="utf-8"), _module(path))
        if name.split(".")[0] in (*LAYERS, "tests", "benchmarks", "scripts")
    }
    assert short == set()


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import envhub", (*HEAVY, "pydantic", "envhub.environment")),
        ("from envhub import *", tuple(name for name in HEAVY if name not in ("PIL", "numpy", "gymnasium"))),
        ("import envhub.registry, envhub.driver, envhub.replay, envhub.records", HEAVY),
        ("import envhub.agents.engines, envhub.agents.executors, envhub.agents.evaluation", HEAVY),
    ],
)
def test_imports_pull_in_nothing_heavy(statement: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys\n{statement}\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_public_names_are_the_ones_that_are_listed() -> None:
    import envhub

    assert [name for name in envhub.__all__ if not hasattr(envhub, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = envhub.nothing
