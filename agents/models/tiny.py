"""A Llama of 1 to 3 million random parameters, built on the spot: the real code path at no cost.

It speaks ChatML with tools, over a byte-level BPE tokenizer trained on a text that is shipped beside this file.
"""

import hashlib
import importlib.metadata
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envhub.agents.models.checks import ModelError
from envhub.agents.models.layout import write_model
from envhub.errors import MissingExtraError

_BUILD = 1  # to be counted up when what is written changes
_VOCABULARY = 1024
_CONTEXT = 4096
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- 'Tools:' }}
{%- for tool in tools %}
{{- '\\n' }}{{ tool | tojson }}
{%- endfor %}
{{- '\\nTo call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content or [] %}
{{- part.text or '' }}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' }}{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
{{- '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


@dataclass(frozen=True, slots=True)
class _Shape:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


# Heads of 32 and 64 are sizes that every attention kernel of vLLM takes, on CPU and GPU.
_SHAPES = {
    "1m": _Shape(128, 384, 4, 4, 2, 32),
    "3m": _Shape(256, 640, 4, 4, 2, 64),
}


def cache_name(parameters: str, *, seed: int) -> str:
    """The cache folder's name: it changes with everything that the model is built from."""
    parts = (_BUILD, asdict(_shape(parameters)), seed, _VOCABULARY, _CONTEXT, _CHAT_TEMPLATE, _corpus())
    libraries = [f"{name}=={_version(name)}" for name in ("tokenizers", "transformers")]
    digest = hashlib.sha256(repr((parts, libraries)).encode()).hexdigest()
    return f"tiny-{parameters}-{digest[:12]}"


def build_tiny_model(folder: Path | str, *, seed: int = 0, parameters: str = "1m") -> Path:
    """Write a tiny model in Hugging Face layout to `folder`, which must be new or empty, and give its path.

    The same `seed` and `parameters` (`"1m"` or `"3m"`) give the same files. Takes a few seconds, most of them imports.
    Raises ModelError for a folder that has something in it, MissingExtraError without torch and transformers.
    """
    target = Path(folder)
    if target.is_dir() and any(target.iterdir()):
        raise ModelError(f"folder {target} is not empty; name a new one for the tiny model")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot make the folder {target}: {error.strerror}") from error
    write_tiny_model(target, seed=seed, parameters=parameters)
    return target


def write_tiny_model(folder: Path, *, seed: int, parameters: str) -> None:
    """Write the files of a tiny model into an existing folder. See `build_tiny_model`."""
    shape = _shape(parameters)
    try:
        import torch
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtraError(f"model 'tiny' ({error.name})", "train") from error

    pad, bos, eos = range(3)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
        **asdict(shape),
    )
    with torch.random.fork_rng(devices=[]):  # building a module draws from the global generator
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, config.initializer_range, generator=generator)
    model.generation_config = GenerationConfig(bos_token_id=bos, eos_token_id=eos, pad_token_id=pad)
    write_model(model, folder, dtype=torch.float32)

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_train_tokenizer(),
        pad_token=_SPECIAL_TOKENS[pad],
        bos_token=_SPECIAL_TOKENS[bos],
        eos_token=_SPECIAL_TOKENS[eos],
        model_max_length=_CONTEXT,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def _train_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus().splitlines(keepends=True), trainer)
    if tokenizer.get_vocab_size() != _VOCABULARY:
        raise RuntimeError(f"the tiny corpus gave {tokenizer.get_vocab_size()} tokens instead of {_VOCABULARY}")
    return tokenizer


@cache
def _corpus() -> str:
    return Path(__file__).with_name("tiny_corpus.txt").read_text(encoding="utf-8")


def _shape(parameters: str) -> _Shape:
    if parameters not in _SHAPES:
        raise ModelError(f"no tiny model of size {parameters!r}; there are: {', '.join(_SHAPES)}")
    return _SHAPES[parameters]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError("model 'tiny'", "train") from None
