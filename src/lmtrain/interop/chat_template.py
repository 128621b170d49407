"""The chat template of transformers for the chat tokens of our own tokenizers, for vLLM and others to converse.

It begins with the end-of-text token (`bos_token`), as every document does in training.
"""

from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat_styles import turn_ends
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
    """Return the ids at the end of generation: the end of a text, and of an assistant's turn in each chat style."""
    return [*dict.fromkeys([tokenizer.end_of_text_id, *turn_ends(tokenizer.special_tokens)])]


def eos_token_id(tokenizer: Tokenizer) -> int | list[int]:
    """Return `end_ids` as transformers writes them: one alone, several as a list."""
    ends = end_ids(tokenizer)
    return ends if len(ends) > 1 else ends[0]
