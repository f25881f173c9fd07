"""Which device computes, and which number format it computes quickly in."""

import functools

from envhub.errors import UserError

DTYPES = ("auto", "float32", "bfloat16", "float16")


def choose_device(name: str) -> str:
    """The device that `auto` stands for: CUDA where there is one, else the CPU; any other name is itself.

    Raises UserError for a device that is not here.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    here = device is not None and (
        device.type == "cpu"
        or (device.type == "cuda" and torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count())
    )
    if not here:
        raise UserError(f"device {name!r} is not here; give auto, cpu or, where torch sees a GPU, cuda")
    return name


@functools.cache
def fast_dtype(kind: str) -> str:
    """`"bfloat16"` on CUDA and on CPUs with bf16 instructions. Elsewhere it is emulated and slow: `"float16"` on CUDA,
    `"float32"` on a CPU. `kind` is `cpu` or `cuda`."""
    import torch

    if kind == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    # Without these instructions one bf16 matrix product takes as long as hundreds in float32.
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bfloat16" if has_bf16 else "float32"
