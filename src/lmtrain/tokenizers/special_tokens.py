"""The names of the special tokens of lmtrain's own tokenizers; elsewhere they are the file's."""

END_OF_TEXT = "<|end_of_text|>"

CHAT_TOKENS = (
    "<|system_start|>",
    "<|system_end|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_result_start|>",
    "<|tool_result_end|>",
)

_UNUSED = "<|unused_"


def unused_tokens(num_tokens: int) -> tuple[str, ...]:
    """Return names for special tokens as fillers of a vocabulary up to its size."""
    return tuple(f"{_UNUSED}{index}|>" for index in range(num_tokens))


def is_unused(name: str) -> bool:
    """Return whether a special token only fills the vocabulary."""
    return name.startswith(_UNUSED)
