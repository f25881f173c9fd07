"""Where models compute, and in which precision."""

import contextlib
import ctypes
import os
from typing import Any

import torch

from envhub.agents.engines.precision import choose_device, fast_dtype

# Read by torch when it first takes memory: huge pages, of which a step touches 500 times fewer.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


class Arithmetic:
    """Where models compute, and in which precision: `auto`, `float32` or `bfloat16` (autocast)."""

    def __init__(self, device: str = "auto", precision: str = "auto") -> None:
        self.device = torch.device(choose_device(device))
        if precision == "auto":  # float16 would need its gradients scaled
            precision = "bfloat16" if fast_dtype(self.device.type) == "bfloat16" else "float32"
        self.precision = precision

    def mixed(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which a model runs."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def give_back(self) -> None:
        """Give the memory that a micro-batch has freed back to the system, where the allocator keeps it otherwise (glibc's).

        What it keeps lies in pieces that the next micro-batch, of another shape, does not fit into.
        """
        if self.device.type == "cpu" and _TRIM is not None:
            _TRIM(0)


_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
