"""The chat template of transformers for the chat tokens of a tokenizer, for vLLM and others to converse.

It begins with the end-of-text token (`bos_token`), as every document does in training.
"""

from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.chat_styles import styles_of, turn_ends

ANSWER_END = "<|assistant_end|>"
NO_CALLS = "{%- if message['tool_calls'] -%}{{ raise_exception('this template writes no tool calls') }}{%- endif -%}"


def _template(turn: str, *, begin: str = "bos_token", answer: str) -> str:
    """Write a template of the expressions for the begin of a text, a message, and the begin of an answer."""
    loop = ["{%- for message in messages -%}", NO_CALLS, f"{{{{- {turn} -}}}}", "{%- endfor -%}"]
    asked = f"{{%- if add_generation_prompt -%}}{{{{- {answer} -}}}}{{%- endif -%}}"
    return "\n".join([f"{{{{- {begin} -}}}}", *loop, asked, ""])


ROLE = "(message['role'] | replace('tool', 'tool_result'))"
TEMPLATES = {
    "lmtrain": _template(
        f"'<|' + {ROLE} + '_start|>' + message['content'] + '<|' + {ROLE} + '_end|>'", answer="'<|assistant_start|>'"
    ),
    "chatml": _template(
        r"'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'",
        answer=r"'<|im_start|>assistant\n'",
    ),
    "llama3": _template(
        r"'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>'",
        begin="bos_token + '<|begin_of_text|>'",
        answer=r"'<|start_header_id|>assistant<|end_header_id|>\n\n'",
    ),
}


def chat_template(tokenizer: Tokenizer) -> str | None:
    """Return the template of a tokenizer's chat style, or None where it has not the tokens of one."""
    styles = styles_of(tokenizer.special_tokens)
    return TEMPLATES[styles[0].name] if styles else None


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids at the end of generation: the end of a text, and of an assistant's turn in each chat style."""
    return [*dict.fromkeys([tokenizer.end_of_text_id, *turn_ends(tokenizer.special_tokens)])]


def eos_token_id(tokenizer: Tokenizer) -> int | list[int]:
    """Return `end_ids` as transformers writes them: one alone, several as a list."""
    ends = end_ids(tokenizer)
    return ends if len(ends) > 1 else ends[0]
