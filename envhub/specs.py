"""Where an environment comes from: its id, its code, its configuration and its content hash."""

import hashlib
import importlib
import importlib.util
import inspect
import itertools
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from envhub.environment import Environment
from envhub.errors import UserError, did_you_mean
from envhub.guard import authors_mistake, described, is_interruption, shown
from envhub.limits import Limits
from envhub.offload import import_path

_IMPORTER = "<frozen importlib"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """A registered environment.

    `target` is `"module:Class"` or `"/absolute/file.py:Class"` (a folder's target names its `__init__.py`); `source` is
    `"bundled"`, `"user"` or the distribution that published it. `content_hash` is the hash of its source when it was
    registered, None where the installed package's version stands for it.
    """

    id: str
    target: str
    config: Mapping[str, Any] = field(default_factory=dict)
    source: str = "user"
    content_hash: str | None = None

    def load(self) -> type[Environment]:
        """Import and return the environment class. Raises UserError where that is not possible."""
        return load_environment(self.target)

    def make(self, config: Mapping[str, Any] | None = None) -> Environment:
        """An instance with the spec's configuration overridden by `config`."""
        return self.load()({**self.config, **(config or {})})


def load_environment(target: str) -> type[Environment]:
    """The environment class at `target`. Raises UserError when it does not import or is no environment class."""
    loaded = load_object(target)
    with authors_mistake(target):  # what a class holds may raise when it is looked at
        if not (inspect.isclass(loaded) and issubclass(loaded, Environment)):
            raise UserError(f"{target} is not an Environment class")
        if not isinstance(loaded.name, str) or not loaded.name:
            raise UserError(f"{target}: name is a text such as 'my_env', not {shown(loaded.name)}")
        if not (inspect.isclass(loaded.Config) and issubclass(loaded.Config, BaseModel)):
            raise UserError(
                f"{target}: Config is a class that derives from EnvironmentConfig, not {shown(loaded.Config)}"
            )
        if not isinstance(loaded.limits, Limits):
            raise UserError(f"{target}: limits is a Limits, such as Limits(max_turns=8), not {shown(loaded.limits)}")
        if loaded.isolation not in ("thread", "process"):
            raise UserError(f"{target}: isolation is 'thread' or 'process', not {shown(loaded.isolation)}")
    return loaded


def load_object(target: str) -> Any:
    """The object at `"module:name"` or `"/file.py:name"`. Raises UserError when it cannot be imported."""
    try:
        place, name = import_path(target)
    except ValueError as problem:
        raise UserError(str(problem)) from None
    value: Any = load_module(place)
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise UserError(f"{place} has no {name!r}{did_you_mean(name, dir(value))}") from None
    return value


def load_module(place: str | Path) -> ModuleType:
    """Import a module by name, or a Python file by path (once per path and content).

    Raises UserError naming the module and the problem when it does not import.
    """
    try:
        return importlib.import_module(place) if isinstance(place, str) else _load_file(place.resolve())
    except UserError:
        raise
    except BaseException as problem:  # a module may raise anything while it is imported, also SystemExit
        if is_interruption(problem):
            raise
        if isinstance(problem, OSError) and isinstance(place, Path) and problem.filename == str(place.resolve()):
            raise UserError(f"cannot load {place}: {problem.strerror}") from problem
        raise UserError(f"{place} does not import: {described(problem)}{where(problem, place)}") from problem


def where(problem: BaseException, place: str | Path = "") -> str:
    """The line that raised while `place` was imported: `" (line 3)"` in a file, `" (other.py, line 3)"` elsewhere.

    Empty where that is not known, and for a SyntaxError, whose message says it.
    """
    if isinstance(problem, SyntaxError):
        return ""
    trace = traceback.extract_tb(problem.__traceback__)
    imported = itertools.dropwhile(lambda frame: not frame.filename.startswith(_IMPORTER), trace)
    frames = [frame for frame in imported if not frame.filename.startswith(_IMPORTER)]
    own = [frame for frame in frames if isinstance(place, Path) and frame.filename == str(place.resolve())]
    for frame in (own or frames)[-1:]:
        return f" (line {frame.lineno})" if own else f" ({frame.filename}, line {frame.lineno})"
    return ""


def _load_file(path: Path) -> ModuleType:
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:16]
    name = f"envhub_file_{path.stem if path.stem != '__init__' else path.parent.name}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    search = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
