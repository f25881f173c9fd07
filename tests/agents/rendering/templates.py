"""Chat templates in four styles, and a tokenizer that knows their special tokens."""

from functools import cache
from typing import Any

from envhub.agents.rendering import ChatTemplateRenderer

CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'On offer:' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

LLAMA3 = """\
{%- set head = '<|start_header_id|>' %}
{%- set tail = '<|end_header_id|>\\n\\n' %}
{{- '<|begin_of_text|>' }}
{%- if messages[0].role == 'system' %}
{%- set briefing = messages[0].content | trim %}
{%- set rest = messages[1:] %}
{%- else %}
{%- set briefing = '' %}
{%- set rest = messages %}
{%- endif %}
{%- if briefing or tools %}
{{- head + 'system' + tail + briefing }}
{%- for tool in tools or [] %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '<|eot_id|>' }}
{%- endif %}
{%- for message in rest %}
{%- if message.role == 'tool' %}
{{- head + 'ipython' + tail + message.content | trim + '<|eot_id|>' }}
{%- elif message.tool_calls %}
{{- head + 'assistant' + tail + message.content | trim }}
{%- for call in message.tool_calls %}
{{- '; ' if not loop.first else '' }}
{{- {'name': call.function.name, 'parameters': call.function.arguments} | tojson }}
{%- endfor %}
{{- '<|eot_id|>' }}
{%- else %}
{{- head + message.role + tail + message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- head + 'assistant' + tail }}{%- endif %}"""

QWEN3 = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set asked = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set asked.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content and loop.index0 > asked.last %}
{{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
{{- '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

MISTRAL = """\
{{- '<s>' }}
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- raise_exception('there is no system role') }}
{%- elif message.role == 'user' %}
{%- if tools and loop.first %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]' + ({'content': message.content, 'call_id': message.tool_call_id} | tojson) + '[/TOOL_RESULTS]' }}
{%- else %}
{{- message.content }}
{%- if message.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{{- ', ' if not loop.first else '' }}
{{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}
{%- endfor %}
{{- ']' }}
{%- endif %}
{{- '</s>' }}
{%- endif %}
{%- endfor %}"""

BARE = """\
{%- for message in messages %}
{%- if message.role not in ('user', 'assistant') %}{{- raise_exception('no such role') }}{%- endif %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles alternate') }}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "qwen3": QWEN3, "mistral": MISTRAL, "bare": BARE}
_ENDS = {"llama3": "<|eot_id|>", "mistral": "</s>"}
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
)  # fmt: skip
_CORPUS = (
    "the user asks and the assistant answers", "system tool name arguments parameters content", "hello world  \n\n one",
)  # fmt: skip


def tokenizer_with(template: str | None, end: str = "<|im_end|>") -> Any:
    """A byte-level BPE tokenizer with the special tokens of all styles."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"\s*[\r\n]+| ?\p{L}+| ?[^\s\p{L}]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([line for line in _CORPUS for _ in range(3)], trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token="<|endoftext|>")
    wrapped.chat_template = template
    return wrapped


@cache
def renderer_of(style: str) -> ChatTemplateRenderer:
    """The renderer of a style's template."""
    return ChatTemplateRenderer(tokenizer_with(TEMPLATES[style], _ENDS.get(style, "<|im_end|>")), f"{style}-probe")
