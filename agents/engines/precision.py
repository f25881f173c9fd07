"""Which number format a machine computes quickly in."""

import functools

DTYPES = ("auto", "float32", "bfloat16", "float16")


@functools.cache
def fast_dtype(device: str | None = None) -> str:
    """`"bfloat16"` on CUDA and on CPUs with bf16 instructions; `"float32"` elsewhere, where bf16 is emulated and slow.

    `device` is `cpu` or `cuda`; None looks for CUDA.
    """
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    # Without these instructions one bf16 matrix product takes as long as hundreds in float32.
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bfloat16" if has_bf16 else "float32"
