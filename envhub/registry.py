"""The registry: ids, versions, and where environments come from.

Ids follow Gymnasium: `[namespace/]name[-vN]`. An id without a version means the newest one. Three sources, in this
order: what this process registered, the user's registry (a file, locked while it is written), and the entry points of
installed packages, the bundled environments among them. A path works wherever an id does.
"""

import hashlib
import importlib.util
import inspect
import json
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envhub import plugins
from envhub.environment import Environment
from envhub.errors import NotRegisteredError, UserError, did_you_mean
from envhub.guard import described, is_interruption
from envhub.home import expanded, home, locked, write_atomically
from envhub.specs import EnvironmentSpec, load_module
from envhub.strict_json import loads

_ID = re.compile(r"(?:(?P<namespace>[\w.-]+)/)?(?P<name>\w[\w.-]*?)(?:-v(?P<version>\d+))?")
_SOURCE_SUFFIXES = (".py", ".json", ".jsonl", ".toml", ".txt", ".jinja", ".html")
_LONGEST = 100
_process: dict[str, EnvironmentSpec] = {}


class RegistryWarning(UserWarning):
    """Something about a registered environment that its user should know: an old version, a changed source."""


def parse_id(text: str) -> tuple[str, int | None]:
    """`(name with namespace, version or None)`. Raises UserError for what is no id."""
    parsed = _read_id(text)
    if len(text) > _LONGEST:
        raise UserError(f"'{text[:40]}…' is no environment id; ids have at most {_LONGEST} characters, not {len(text)}")
    if parsed is None:
        raise UserError(f"{text!r} is no environment id; ids look like my_env, my_env-v1 or namespace/my_env-v1")
    return parsed


def _read_id(text: str) -> tuple[str, int | None] | None:
    """What `parse_id` gives, None for what is no id (a package may publish any name)."""
    match = _ID.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or looks_like_path(text):
        return None
    name, version = match["name"], match["version"]
    full = f"{match['namespace']}/{name}" if match["namespace"] else name
    return full, None if version is None else int(version)


def make(environment: "str | EnvironmentSpec | type[Environment]", **config: Any) -> Environment:
    """An instance of a registered environment, configured by keywords. Raises UserError."""
    return as_spec(environment).make(config)


def as_spec(environment: "str | EnvironmentSpec | type[Environment]") -> EnvironmentSpec:
    """A spec from an id, a path, an environment class that a module defines, or the spec itself."""
    if isinstance(environment, EnvironmentSpec):
        return environment
    if inspect.isclass(environment):
        return _spec_of_class(environment)
    return spec(environment)


def spec(name: str) -> EnvironmentSpec:
    """The spec of an id (`name`, `name-v2`, `namespace/name-v2`) or of a path (`file.py`, `file.py:Class`, a folder).

    Warns (RegistryWarning) for an old version and for a source that changed since it was registered. Raises
    NotRegisteredError with the nearest known id.
    """
    if looks_like_path(name):
        return spec_of_path(name)
    wanted, version = parse_id(name)
    known = all_specs()
    parsed = [(_read_id(found.id), found) for found in known.values()]
    versions = {name[1]: found for name, found in parsed if name is not None and name[0] == wanted}
    if version not in versions and (version is not None or not versions):
        if versions:
            have = ", ".join(sorted(found.id for found in versions.values()))
            raise NotRegisteredError(f"environment {wanted!r} has no version {version}; registered: {have}")
        if _exists(name):
            return spec_of_path(name)
        hint = did_you_mean(name, known) or f"; registered: {', '.join(sorted(known)) or 'none'}"
        raise NotRegisteredError(f"no environment named {name!r}{hint}")
    newest = max(versions, key=lambda number: -1 if number is None else number)
    found = versions[newest if version is None else version]
    if version is not None and version != newest:
        warnings.warn(f"{name} is not the newest version: there is {versions[newest].id}", RegistryWarning, 2)
    return _noticing_changes(found)


def all_specs() -> dict[str, EnvironmentSpec]:
    """Every known spec by id; nothing is imported."""
    return {**_published(), **user_specs(), **_process}


def _published() -> dict[str, EnvironmentSpec]:
    out: dict[str, EnvironmentSpec] = {}
    for name, point in plugins.entries(plugins.ENVIRONMENTS).items():
        owner = plugins.owner_of(point)
        target = point.value.partition("[")[0].strip()  # without the extras that an entry point may name
        out[name] = EnvironmentSpec(name, target, source="bundled" if owner == "envhub" else owner)
    return out


def register(
    id: str,
    target: "str | type[Environment]",
    *,
    config: Mapping[str, Any] | None = None,
    persist: bool = False,
    force: bool = False,
) -> EnvironmentSpec:
    """Register an environment class, `"module:Class"`, or a path under an id, for this process or for the user.

    With `persist` it is written to the user's registry, from where every later process finds it; there, an id that would
    hide an environment of an installed package, the bundled ones among them, is refused without `force`. Raises
    UserError.
    """
    parse_id(id)
    if persist and not force:
        _refuse_hiding(id)
    if inspect.isclass(target):
        made = _spec_of_class(target)
    elif looks_like_path(target) or _exists(target):
        made = spec_of_path(target)
    else:
        made = EnvironmentSpec(id, target, content_hash=content_hash(target))
        made.load()
    made = replace(made, id=id, config={**made.config, **(config or {})}, source="user")
    _try(made)  # a configuration that does not fit is refused now
    if persist:
        _write_user(add=made)
    else:
        _process[id] = made
    return made


def _refuse_hiding(id: str) -> None:
    name, version = parse_id(id)
    for found in _published().values():
        other, its_version = _read_id(found.id) or (found.id, None)
        whose = "is bundled with envhub" if found.source == "bundled" else f"is published by package {found.source!r}"
        remedy = "give another name (--name), or insist with --force"
        if other == name and version == its_version:
            raise UserError(f"{id!r} would hide the environment {found.id!r}, which {whose}; {remedy}")
        if other == name and (-1 if version is None else version) > (-1 if its_version is None else its_version):
            raise UserError(
                f"{id!r} would be the newest version of {name!r} and hide {found.id!r}, which {whose}; {remedy}"
            )


def _try(made: EnvironmentSpec) -> None:
    cls = made.load()
    try:
        cls(made.config)
    except UserError:
        raise
    except BaseException as problem:  # an environment's `__init__` may raise anything
        if is_interruption(problem):
            raise
        raise UserError(f"{made.target} cannot be made: its __init__ raised {described(problem)}") from problem


def unregister(id: str) -> EnvironmentSpec:
    """Forget an environment of this process or of the user's registry. Raises NotRegisteredError, UserError."""
    if id in _process:
        return _process.pop(id)
    users = user_specs()
    if id not in users:
        bundled = all_specs()
        if id in bundled:
            source = bundled[id].source
            if source == "bundled":
                raise UserError(f"{id!r} comes with envhub and cannot be removed")
            raise UserError(f"{id!r} is published by package {source!r}; uninstall the package to remove it")
        raise NotRegisteredError(f"no environment {id!r} in the user's registry{did_you_mean(id, users)}")
    _write_user(remove=id)
    return users[id]


def registry_file() -> Path:
    """The user's registry."""
    return home() / "registry.json"


def user_specs() -> dict[str, EnvironmentSpec]:
    """The user's registry by id. Raises UserError when its file is damaged."""
    path = registry_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise UserError(f"cannot read the registry {path}: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise UserError(f"cannot read the registry {path}: {problem}") from problem
    try:
        entries = loads(text)["environments"]
        return {id: _read_entry(id, entry) for id, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, UserError) as problem:
        raise UserError(
            f"the registry {path} is damaged ({problem}); repair it, or delete it and register anew"
        ) from None


def _read_entry(id: str, entry: dict[str, Any]) -> EnvironmentSpec:
    parse_id(id)
    target, config, found = entry["target"], entry.get("config", {}), entry.get("content_hash")
    if not isinstance(target, str) or not isinstance(config, dict) or not isinstance(found, str | None):
        raise ValueError(f"the entry of {id!r} is no environment")
    return EnvironmentSpec(id, target, config, "user", found)


def _write_user(*, add: EnvironmentSpec | None = None, remove: str = "") -> None:
    path = registry_file()
    with locked(path.with_suffix(".lock")):
        current = user_specs()  # read again: another process may have registered something meanwhile
        if add is not None:
            current[add.id] = add
        current.pop(remove, None)
        entries = {
            id: {"target": item.target, "config": dict(item.config), "content_hash": item.content_hash}
            for id, item in sorted(current.items())
        }
        try:
            text = json.dumps({"version": 1, "environments": entries}, indent=2, allow_nan=False) + "\n"
        except (TypeError, ValueError) as problem:
            raise UserError(f"the configuration of {add.id if add else path!r} cannot be kept: {problem}") from None
        write_atomically(path, text)


def spec_of_path(text: str) -> EnvironmentSpec:
    """The spec of `file.py`, `file.py:Class` or a folder that holds an environment. Raises UserError."""
    place, separator, name = text.rpartition(":")
    if not separator or not place or "/" in name:
        place, name = text, ""
    file = _environment_file(expanded(place))
    if not name:
        name = _only_environment(file)
    target = f"{file}:{name}"
    found = EnvironmentSpec("", target, content_hash=content_hash(target))
    own = found.load().name
    if not isinstance(own, str) or _read_id(own) is None:
        shown = repr(own) if len(repr(own)) <= _LONGEST else f"{repr(own)[:40]}…"
        raise UserError(
            f"{target}: the name {shown} is no environment id; write a name like my_env, of at most {_LONGEST} characters"
        )
    return replace(found, id=own)


def looks_like_path(name: str) -> bool:
    """Whether a name is a path (`file.py`, `./folder`, `file.py:Class`) and not an id."""
    place = name.rpartition(":")[0] or name
    return place.endswith(".py") or name.startswith((".", "/", "~")) or (":" in name and _exists(place))


def _exists(place: str) -> bool:
    try:
        return Path(place).exists()
    except OSError:  # such as a name that no file system takes
        return False


def _environment_file(path: Path) -> Path:
    if path.is_file():
        return path.resolve()
    if not path.is_dir():
        raise UserError(f"no environment at {path}: there is no such file or folder")
    folder = path.resolve()
    stem = folder.name.replace("-", "_")
    tried = [folder / "__init__.py", folder / stem / "__init__.py", folder / "src" / stem / "__init__.py"]
    tried += [folder / f"{stem}.py", folder / "environment.py"]
    for candidate in tried:
        if candidate.is_file():
            return candidate
    files = [item for item in sorted(folder.glob("*.py")) if not item.name.startswith("test_")]
    if len(files) == 1:
        return files[0]
    raise UserError(
        f"{path} holds no environment that can be found: expected {stem}/__init__.py or {stem}.py in it; "
        "name the file: path/file.py:ClassName"
    )


def _only_environment(file: Path) -> str:
    """The name of the one environment class that a file shows: defined in it, or imported by a package's `__init__`."""
    module = load_module(file)
    prefix = module.__name__

    def is_own(cls: type) -> bool:
        return cls.__module__ == prefix or cls.__module__.startswith(f"{prefix}.")

    found = sorted(
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Environment) and is_own(value) and not name.startswith("_")
    )
    if not found:
        raise UserError(f"{file} defines no environment class; write one that derives from envhub.Environment")
    if len(found) > 1:
        raise UserError(f"{file} defines {len(found)} environments ({', '.join(found)}); name one: {file}:{found[0]}")
    return found[0]


def _spec_of_class(cls: type[Environment]) -> EnvironmentSpec:
    if "<" in cls.__qualname__:
        raise UserError(f"{cls.__qualname__} is defined in a function; define environments at a module's top level")
    package = sys.modules.get(cls.__module__.partition(".")[0])
    by_path = cls.__module__.startswith("envhub_file_")
    if by_path and package is not None and getattr(package, cls.__qualname__, None) is cls:
        place = str(package.__file__)  # a package loaded by its path is loaded by its `__init__` again
    elif by_path or cls.__module__ == "__main__":
        try:
            place = str(Path(inspect.getfile(cls)).resolve())
        except (OSError, TypeError):
            raise UserError(f"{cls.__qualname__} is in no file; write it into one, and name that") from None
    else:
        place = cls.__module__
    target = f"{place}:{cls.__qualname__}"
    return EnvironmentSpec(cls.name, target, content_hash=content_hash(target))


def content_hash(target: str) -> str | None:
    """A hash of an environment's source: of its file, or of all sources of its package; None where there is none to read."""
    place = target.rpartition(":")[0]
    if place.endswith(".py") or "/" in place:
        file = Path(place)
    else:
        try:
            found = importlib.util.find_spec(place)
        except BaseException as problem:  # finding a module imports the packages that hold it: that may raise anything
            if is_interruption(problem):
                raise
            return None
        if found is None or found.origin is None or not Path(found.origin).is_file():
            return None
        file = Path(found.origin)
    files = [file]
    if file.name == "__init__.py":
        files = sorted(
            p for p in file.parent.rglob("*") if p.suffix in _SOURCE_SUFFIXES and "__pycache__" not in p.parts
        )
    digest = hashlib.sha256()
    try:
        for item in files:
            digest.update(f"{item.relative_to(file.parent)}\0".encode())
            digest.update(hashlib.sha256(item.read_bytes()).digest())
    except OSError:
        return None
    return digest.hexdigest()[:32]


def _noticing_changes(found: EnvironmentSpec) -> EnvironmentSpec:
    if found.source != "user" or found.content_hash is None:
        return found
    now = content_hash(found.target)
    if now == found.content_hash:
        return found
    if now is None:
        raise UserError(
            f"environment {found.id!r} was registered from {found.target}, which is gone; "
            f"register it anew, or forget it: envhub unregister {found.id}"
        )
    warnings.warn(
        f"environment {found.id!r} has changed since it was registered; "
        f"check it again: envhub check {found.id}, then envhub register {found.target} --name {found.id}",
        RegistryWarning,
        3,
    )
    return replace(found, content_hash=now)
