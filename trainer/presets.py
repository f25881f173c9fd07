"""What an algorithm is usually run with, on top of the machine's preset; and where each value of a run came from."""

from collections.abc import Mapping, Sequence
from typing import Any

# Where the point of an algorithm is how it bounds the ratio, it takes two updates: with one, the ratio is 1 throughout.
ALGORITHM_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"updates_per_step": 2},
    "dapo": {"updates_per_step": 2, "filter_rounds": 2},
    "gspo": {"updates_per_step": 2},
    "gmpo": {"updates_per_step": 2},
    "cispo": {"updates_per_step": 2},
    "sapo": {"updates_per_step": 2},
}

# A source's name and its values; later sources win.
Layers = Sequence[tuple[str, Mapping[str, Any]]]


def merged(layers: Layers) -> dict[str, Any]:
    """The values of all sources, each from the last that has it."""
    return {key: value for _, values in layers for key, value in values.items()}


def origins(layers: Layers) -> dict[str, list[str]]:
    """By source, the keys that it decided."""
    last = {key: name for name, values in layers for key in values}
    return {name: found for name, _ in layers if (found := [key for key, source in last.items() if source == name])}
