"""Write a model's weights and configurations in Hugging Face layout, in one safetensors file."""

from pathlib import Path
from typing import Any


def write_model(model: Any, folder: Path, *, dtype: Any) -> None:
    """Write `config.json`, `generation_config.json` and `model.safetensors` of a transformers model to `folder`.

    `dtype` is the torch dtype that the weights are stored as. Tied weights are stored once. Unlike `save_pretrained`
    this draws no progress bar and leaves the model as it is.
    """
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.dtype = dtype
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
