"""The chat template of transformers for the chat tokens of our own tokenizers, for vLLM and others to converse.

It begins with the end-of-text token (`bos_token`), as every document does in training.
"""

from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.special_tokens import CHAT_TOKENS

ANSWER_END = "<|assistant_end|>"
TEMPLATE = """\
{{- bos_token -}}
{%- set names = {'system': 'system', 'user': 'user', 'assistant': 'assistant', 'tool': 'tool_result'} -%}
{%- for message in messages -%}
{%- if message['tool_calls'] -%}{{ raise_exception('this template writes no tool calls') }}{%- endif -%}
{%- set name = names[message['role']] -%}
{{- '<|' + name + '_start|>' + message['content'] + '<|' + name + '_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}
"""


def chat_template(tokenizer: Tokenizer) -> str | None:
    """Return the template, or None where a tokenizer has not the chat tokens."""
    return TEMPLATE if set(CHAT_TOKENS) <= set(tokenizer.special_tokens) else None


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids at the end of generation: the end of a text, and of an answer where there are chat tokens."""
    ends = [tokenizer.end_of_text_id]
    return ends if chat_template(tokenizer) is None else [*ends, tokenizer.special_tokens[ANSWER_END]]
