"""Score the ends of rows of ids: nats and likeliest tokens, many rows at once, the same however they are batched.

N rows, L ids of a row, S scored ids of a batch, D width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lmtrain.errors import DataError
from lmtrain.models.base import LanguageModel, in_evaluation_mode

NOT_A_NUMBER = "the model gives no numbers: its weights hold nan, as after a diverged run; take another checkpoint."

BATCH_TOKENS = 16_384
SCORED_AT_ONCE = 4_096  # tokens; their logits of 50,000 ids take 0.8 GB in fp32


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row of ids, scored from `start` on, each by those before it; 1 <= start < L."""

    ids: Sequence[int]
    start: int

    def within(self, num_tokens: int) -> "ScoredRow":
        """Return the row's last ids, for a context of `num_tokens`; at least one id is scored and one is read."""
        cut = max(0, len(self.ids) - 1 - num_tokens)  # the last id is predicted alone and never read
        return ScoredRow(self.ids[cut:], max(1, self.start - cut)) if cut else self


@dataclass(frozen=True, slots=True)
class RowScore:
    """The nats of a span's ids together, and whether each was the likeliest id."""

    nats: float
    num_tokens: int
    is_likeliest: bool

    @property
    def mean_nats(self) -> float:
        """Return the nats of an id."""
        return self.nats / self.num_tokens


def score_rows(model: LanguageModel, spans: Sequence[ScoredRow], *, batch_tokens: int = BATCH_TOKENS) -> list[RowScore]:
    """Return a score for each span, in their order; rows of like lengths share a batch of at most `batch_tokens` ids.

    Ids before the model's context are left out. The model's mode is given back.
    """
    spans = [span.within(model.max_context_tokens) for span in spans]
    scores: list[RowScore | None] = [None] * len(spans)
    with in_evaluation_mode(model), torch.inference_mode():
        for places in _batches([len(span.ids) for span in spans], batch_tokens):
            for place, score in zip(places, _score(model, [spans[one] for one in places]), strict=True):
                scores[place] = score
    return [score for score in scores if score is not None]


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the places of rows to be read together, longest first, for a lack of memory to show at once."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _score(model: LanguageModel, spans: Sequence[ScoredRow]) -> list[RowScore]:
    device = next(model.parameters()).device
    longest = max(len(span.ids) for span in spans) - 1
    tokens = torch.zeros(len(spans), longest, dtype=torch.int64)  # a row does not see the padding behind it
    for row, span in enumerate(spans):
        tokens[row, : len(span.ids) - 1] = torch.tensor(span.ids[:-1])
    rows = torch.cat([torch.full((len(span.ids) - span.start,), row) for row, span in enumerate(spans)])
    columns = torch.cat([torch.arange(span.start - 1, len(span.ids) - 1) for span in spans])
    targets = torch.cat([torch.tensor(span.ids[span.start :]) for span in spans])
    hidden = model.hidden_states(tokens.to(device))[rows.to(device), columns.to(device)]  # [S, D]
    nats, likeliest = _by_token(model, hidden, targets.to(device))
    if bool(nats.isnan().any()):
        raise DataError(NOT_A_NUMBER)
    lengths = [len(span.ids) - span.start for span in spans]
    return [
        RowScore(float(of_span.sum()), len(of_span), bool(hits.all()))
        for of_span, hits in zip(nats.split(lengths), likeliest.split(lengths), strict=True)
    ]


def _by_token(model: LanguageModel, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nats of each target [S] in fp64, and whether it was the likeliest [S]."""
    nats: list[Tensor] = []
    likeliest: list[Tensor] = []
    for states, wanted in zip(hidden.split(SCORED_AT_ONCE), targets.split(SCORED_AT_ONCE), strict=True):
        logits = model.logits(states[None])[0].float()  # [S, V]
        nats.append(cross_entropy(logits, wanted, reduction="none").double().cpu())
        likeliest.append((logits.argmax(-1) == wanted).cpu())
    return torch.cat(nats), torch.cat(likeliest)
