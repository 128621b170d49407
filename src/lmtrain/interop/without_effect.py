"""Settings of a model that decide its kernels or its start, never the function of its weights."""

from typing import Final

WITHOUT_EFFECT: Final = frozenset(
    {"attention", "init_std", "embedding_init_std", "head_init_std", "value_embedding_init_std", "zero_init_outputs"}
    | {"embedding_skip_start"}
)
