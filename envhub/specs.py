"""Where an environment comes from: its id, its code, its configuration and its content hash."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from envhub.environment import Environment
from envhub.errors import UserError, did_you_mean
from envhub.offload import import_path


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
    if not (inspect.isclass(loaded) and issubclass(loaded, Environment)):
        raise UserError(f"{target} is not an Environment class")
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
        return importlib.import_module(place) if isinstance(place, str) else _load_file(place)
    except UserError:
        raise
    except FileNotFoundError as problem:
        raise UserError(f"cannot load {place}: {problem.strerror}") from problem
    except Exception as problem:
        raise UserError(f"{place} does not import: {type(problem).__name__}: {problem}") from problem


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
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
