"""Plugins: what installed packages publish under envhub's entry-point groups.

Names are read from the packages' metadata; nothing is imported until a plugin is asked for by name. The bundled parts
use the same groups. A plugin that does not import breaks only itself.
"""

from importlib import metadata
from typing import Any

from envhub.errors import NotRegisteredError, UserError, did_you_mean
from envhub.guard import described, is_interruption
from envhub.specs import load_object, where

ENVIRONMENTS = "envhub.environments"
REWARDS = "envhub.rewards"
ALGORITHMS = "envhub.algorithms"
ENGINES = "envhub.engines"
PARSERS = "envhub.parsers"
GROUPS = (ENVIRONMENTS, REWARDS, ALGORITHMS, ENGINES, PARSERS)


def entries(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of a group by name; where two packages publish one name, the bundled one comes first."""
    found: dict[str, metadata.EntryPoint] = {}
    seen: set[str] = set()
    for package in metadata.distributions():
        try:
            points = package.entry_points.select(group=group)
            name = package.name if points else ""
        except Exception:  # metadata that cannot be read is its own package's problem
            continue
        if not points or name in seen:  # nothing here, or hidden by an installation earlier on the path
            continue
        seen.add(name)
        for point in points:
            if point.name not in found or name == "envhub":
                found[point.name] = point
    return found


def names(group: str) -> list[str]:
    """The names published in a group, sorted."""
    return sorted(entries(group))


def owner_of(point: metadata.EntryPoint) -> str:
    """The distribution that publishes an entry point."""
    return point.dist.name if point.dist is not None else "?"


def load(group: str, name: str) -> Any:
    """The object published as `name`, or the one at `module:name` or `file.py:name`.

    Raises NotRegisteredError for an unknown name (with the nearest one), UserError when it does not import.
    """
    kind = group.partition(".")[2].removesuffix("s")
    point = entries(group).get(name)
    if point is None:
        if ":" in name:
            return load_object(name)
        known = names(group)
        hint = did_you_mean(name, known)
        raise NotRegisteredError(f"no {kind} named {name!r}; there are {', '.join(known) or 'none'}{hint}")
    try:
        return point.load()
    except UserError:
        raise
    except BaseException as problem:  # a plugin's module may raise anything while it is imported, also SystemExit
        if is_interruption(problem):
            raise
        raise UserError(
            f"{kind} {name!r} of package {owner_of(point)!r} does not import: "
            f"{described(problem)}{where(problem)}; "
            f"repair or uninstall {owner_of(point)}"
        ) from problem
