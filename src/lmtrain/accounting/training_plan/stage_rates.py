"""Rates behind the plan of a pipeline's stages where nothing has measured them; docs/pipelines.md has their sources."""

import math
from itertools import pairwise
from typing import Final

# Text from JSON lines to verified shards, one core; two seconds are the same for every corpus.
# benchmarks/results/encode_zen4_2cores_202611.md
PREPARED_BYTES_PER_SECOND: Final = 52e6
PREPARE_START_SECONDS: Final = 2.0
# Byte pairs learned from text on two cores: 12.1 MB in 1.6 s (docs/runs.md).
LEARNED_BYTES_PER_SECOND: Final = 7.5e6
HELD_FOR_LEARNING: Final = 4  # times the sample, text waiting on the disk for its tokenizer
INDEX_SHARE: Final = 0.05  # of the shards: document ends, the tokenizer, files being written
# A command's start with its imports of torch, and that of a training whose model is compiled for the first time.
# benchmarks/results/start_up_zen4_2cores_202611.md
START_SECONDS: Final = 4.0
COMPILED_START_SECONDS: Final = 60.0
# A pass of 16 texts, a token each, through a small model: 1,658 tokens a second.
# benchmarks/results/inference_zen4_2cores_202611.md
PASS_SECONDS: Final = 0.01
TEXTS_AT_ONCE: Final = 16  # of answers, the engine's default
RESULT_BYTES: Final = 20_000  # an evaluation's file of scores: 3 KB of ours

# Bytes of text a token, by the entries of its vocabulary: bytes themselves; ours of 4,096 on the Python library
# (docs/runs.md); GPT-2's and nanochat's on held-out FineWeb-Edu (nanochat's report of its tokenizer, 2025-10-14).
TEXT_BYTES: Final = ((257, 1.0), (4_096, 3.46), (50_257, 4.64), (65_536, 4.86))


def text_bytes_per_token(vocab_size: int | None) -> float:
    """Return a usual figure for a vocabulary, in between by its logarithm; None is one of GPT-2's size."""
    entries = vocab_size or TEXT_BYTES[2][0]
    for (few, low), (many, high) in pairwise(TEXT_BYTES):
        if entries <= many:
            part = max(0.0, math.log(entries / few) / math.log(many / few))
            return low + part * (high - low)
    return TEXT_BYTES[-1][1]
