"""A config.json of transformers as it is read: every key is asked for, has no effect, or is refused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lmtrain.errors import DataError

# Keys without effect on the function that the weights compute.
KEYS_WITHOUT_EFFECT: Final = frozenset(
    {"_name_or_path", "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "use_cache"}
    | {"initializer_range", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "pretraining_tp", "n_ctx"}
    | {"bos_token_id", "eos_token_id", "pad_token_id", "task_specific_params", "output_router_logits"}
    | {"reorder_and_upcast_attn", "attn_implementation", "_attn_implementation", "auto_map", "cache_implementation"}
    | {"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"}
    | {"output_attentions", "output_hidden_states", "return_dict", "is_decoder", "is_encoder_decoder", "id2label"}
    | {"label2id", "problem_type", "tokenizer_class", "chunk_size_feed_forward", "max_length", "temperature", "top_p"}
    | {"top_k", "do_sample", "num_beams", "repetition_penalty", "transformers.js_config", "unsloth_fixed"}
    | {"unsloth_version", "quantization_config", "original_max_position_embeddings", "keys_to_ignore_at_inference"}
)


@dataclass
class ForeignConfig:
    """A config.json that notes which keys were requested."""

    content: Mapping[str, Any]
    asked: set[str] = field(default_factory=set[str])

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of these keys present."""
        self.asked.update(names)
        return next((self.content[name] for name in names if self.content.get(name) is not None), default)

    def count(self, *names: str) -> int:
        """Return the first of these keys present, a whole number; raises DataError for another value or none."""
        value = self.get(*names)
        if not isinstance(value, int) or isinstance(value, bool):
            raise DataError(f"config.json: {' or '.join(names)} must be a whole number, got {value!r}.")
        return value

    def one_of(self, name: str, value: Any, known: Mapping[str, Any]) -> Any:
        """Return what a value stands for; raises DataError for an unknown one."""
        if value not in known:
            raise DataError(f"config.json: {name}={value} is not supported; supported: {', '.join(known)}.")
        return known[value]

    def require_known(self, known: Iterable[str] = ()) -> None:
        """Refuse a key that nobody asked for, unless it is off; raises DataError with its name."""
        for name in sorted(set(self.content) - self.asked - KEYS_WITHOUT_EFFECT - set(known)):
            if self.content[name] and not name.startswith("_"):
                raise DataError(
                    f"config.json: {name}={self.content[name]} is not supported; remove the key if the model computes "
                    "the same without it."
                )
