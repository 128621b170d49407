"""A language model of pairs of bytes, whose every answer is known by hand."""

import math

import torch
from torch import nn

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.models.base import LanguageModel
from lmtrain.models.head import OutputHead

VOCAB_SIZE = 257


class Bigram(LanguageModel):
    """After a byte comes each of `after[byte]` with its probability; elsewhere all ids are as likely."""

    def __init__(self, after: dict[str, dict[str, float]], *, max_context_tokens: int = 64) -> None:
        super().__init__()
        self.vocab_size, self.max_context_tokens = VOCAB_SIZE, max_context_tokens
        table = torch.full((VOCAB_SIZE, VOCAB_SIZE), -math.log(VOCAB_SIZE))
        for byte, following in after.items():
            rest = (1 - sum(following.values())) / (VOCAB_SIZE - len(following))
            table[ord(byte)] = math.log(rest)
            for other, probability in following.items():
                table[ord(byte), ord(other)] = math.log(probability)
        self.table = nn.Parameter(table)
        self.eye = nn.Parameter(torch.eye(VOCAB_SIZE))

    @property
    def blocks(self) -> nn.ModuleList:
        return nn.ModuleList()

    def features(self, tokens, documents=None):
        return self.table[tokens], None

    def output_head(self) -> OutputHead:
        return OutputHead(self.eye)

    def initialize_weights(self, generator: torch.Generator) -> None:
        """Keep the table."""

    def shape(self) -> ModelShape:
        raise NotImplementedError
