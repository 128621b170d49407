"""How long the documents of a data set are, as a count by length, for those who reckon with it."""

import numpy as np

from lmtrain.data.document_ends import document_ends
from lmtrain.data.shards import Dataset

MOST_DOCUMENTS = 1_000_000  # a larger data set's first ones stand for all


def document_lengths(dataset: Dataset, split: str = "train") -> dict[int, int]:
    """Return how many of a split's documents, of the first million, have each length in tokens."""
    ends = document_ends(dataset, split)[:MOST_DOCUMENTS]
    lengths, counts = np.unique(np.diff(ends, prepend=0), return_counts=True)
    return dict(zip(lengths.tolist(), counts.tolist(), strict=True))
