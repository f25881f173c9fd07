"""Weights on their way from a trainer to an engine."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envhub.errors import EngineFault

if TYPE_CHECKING:
    import torch

SHARED_MEMORY = Path("/dev/shm")


def without_ties(tensors: Mapping[str, "torch.Tensor"]) -> dict[str, "torch.Tensor"]:
    """The tensors with every storage once: of tied weights the first name stays, as in a checkpoint."""
    seen: set[tuple[int, int, tuple[int, ...]]] = set()
    out = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), int(tensor.storage_offset()), tuple(tensor.shape))
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        out[name] = tensor
    return out


@contextlib.asynccontextmanager
async def shared_file(tensors: Mapping[str, "torch.Tensor"], dtype: "torch.dtype") -> AsyncIterator[Path]:
    """A safetensors file of the tensors in `dtype`, in shared memory where it has room, removed at the end.

    It is written in a thread. Raises EngineFault when there is no room for it.
    """
    from safetensors import SafetensorError

    tensors = without_ties(tensors)
    size = sum(tensor.numel() for tensor in tensors.values()) * dtype.itemsize
    roomy = os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free > size + 2**20
    folder = SHARED_MEMORY if roomy else Path(tempfile.gettempdir())
    handle, name = tempfile.mkstemp(prefix="envhub-weights-", suffix=".safetensors", dir=folder)
    os.close(handle)
    path = Path(name)
    try:
        writing = asyncio.ensure_future(asyncio.to_thread(write_weights, tensors, path, dtype))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # which would make the file anew
            raise
        except (OSError, SafetensorError) as problem:
            raise EngineFault(f"cannot hand over weights through {folder}: {problem}") from problem
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def write_weights(tensors: Mapping[str, "torch.Tensor"], file: Path, dtype: "torch.dtype | None" = None) -> None:
    """Write tensors to a safetensors file, tied ones once, in `dtype` (None: each in its own).

    Raises OSError or SafetensorError where it cannot be written.
    """
    from safetensors.torch import save_file

    ready = {
        name: tensor.detach().to(device="cpu", dtype=dtype).contiguous()
        for name, tensor in without_ties(tensors).items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(ready, file, metadata={"format": "pt"})


def iterate_file(path: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    """The named tensors of a safetensors file, or of every such file of a folder.

    Raises EngineFault when there is none or one cannot be read.
    """
    for name, stored in _open_all(path):
        yield name, stored.get_tensor(name)


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes of what `iterate_file` gives, from the files' headers. Raises EngineFault as that does."""
    return {name: tuple(stored.get_slice(name).get_shape()) for name, stored in _open_all(path)}


def _open_all(path: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import SafetensorError, safe_open

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise EngineFault(f"no safetensors file in {path}")
    for file in files:
        try:
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 - not a mapping
                    yield name, stored
        except (OSError, SafetensorError) as problem:
            raise EngineFault(f"cannot read weights from {file}: {problem}") from problem
