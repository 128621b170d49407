"""What one preparation asks for: everything that decides its documents and tokens, and the resulting name."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, final

from data_pipelines.sources.base import Source
from data_pipelines.stages.split import HASH, HeldOut
from data_pipelines.stages.stage import Stage
from data_pipelines.stages.train_tokenizer import TokenizerSpec
from lmtrain.tokenizers.base import sha256_of

CODE_VERSION = 2  # raised when the same settings come to make other tokens


@final
@dataclass(frozen=True)
class BuildRequest:
    """A source, the stages its documents go through, the tokenizer, and the settings behind the tokens besides these.

    `token_budget` is of tokens to train on; None takes all there are.
    """

    source: Source
    stages: Sequence[Stage]
    spec: TokenizerSpec
    held_out: HeldOut
    shard_tokens: int
    token_dtype: str
    token_budget: int | None = None

    @cached_property
    def source_fingerprint(self) -> str:
        """Return the source's content as first seen."""
        return self.source.fingerprint()

    @cached_property
    def fingerprint(self) -> str:
        """Return the sha256 of all of it."""
        return sha256_of(
            {"code_version": CODE_VERSION, "source": self.source_fingerprint, "settings": self.settings_as_json()}
        )

    def settings_as_json(self) -> dict[str, Any]:
        """Return the settings of everything but the source, for the manifest."""
        held_out = asdict(self.held_out)
        if self.held_out.rule == HASH:
            del held_out["rule"]  # folders without the word in their name are found again
        return {
            "held_out": held_out,
            "shard_tokens": self.shard_tokens,
            "token_dtype": self.token_dtype,
            "token_budget": self.token_budget,
            "tokenizer": self.spec.fingerprint_parts(),
            "stages": [dict(stage.fingerprint_parts()) for stage in self.stages],
        }
