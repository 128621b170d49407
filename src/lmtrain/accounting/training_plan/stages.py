"""The plan of a pipeline's stages: their time, dollars and disk, and the assumed rates of those that do not train.

An evaluation reads text in forward passes, a third of a training step's FLOPs per token, and writes answers as GRPO's
steps do, on one device. docs/pipelines.md has the sources of the rates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, Literal

from lmtrain.accounting.cluster import MEASURED
from lmtrain.accounting.training_plan.plan_parts import FORWARD_SHARE, WRITE_BYTES_PER_SECOND, GenerationPlan

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


@dataclass(frozen=True, kw_only=True)
class PreparationWork:
    """Text for `train_tokens` to train on, and for held-out ones; `learned_bytes` of it teach a tokenizer."""

    train_tokens: float
    validation_share: float
    test_share: float
    text_bytes_per_token: float
    bytes_per_token: int
    learned_bytes: float = 0.0

    @property
    def num_tokens(self) -> float:
        """Return the tokens of all splits."""
        return self.train_tokens / (1 - self.validation_share - self.test_share)

    @property
    def validation_tokens(self) -> int:
        """Return those of the validation split."""
        return round(self.num_tokens * self.validation_share)

    @property
    def test_tokens(self) -> int:
        """Return those of the split of `lmtrain evaluate`."""
        return round(self.num_tokens * (self.test_share or self.validation_share))

    @property
    def text_bytes(self) -> int:
        """Return the bytes of the text."""
        return round(self.num_tokens * self.text_bytes_per_token)

    @property
    def seconds(self) -> float:
        """Return the time from text to shards, on a core."""
        learning = min(self.learned_bytes, self.text_bytes) / LEARNED_BYTES_PER_SECOND
        return PREPARE_START_SECONDS + learning + self.text_bytes / PREPARED_BYTES_PER_SECOND

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of the shards with their indices."""
        return round(self.num_tokens * self.bytes_per_token * (1 + INDEX_SHARE))

    @property
    def disk_bytes(self) -> int:
        """Return the same with the text waiting for its tokenizer."""
        return self.kept_bytes + round(min(HELD_FOR_LEARNING * self.learned_bytes, self.text_bytes))


@dataclass(frozen=True, kw_only=True)
class RowsToScore:
    """Rows of text scored each by itself; `text_bytes` of all of them, None: each as long as the context."""

    num_rows: int
    text_bytes: float | None = None

    def tokens(self, *, context_tokens: int, text_bytes_per_token: float) -> float:
        """Return the tokens of all rows."""
        most = self.num_rows * context_tokens
        return most if self.text_bytes is None else min(most, self.text_bytes / text_bytes_per_token + self.num_rows)


@dataclass(frozen=True, kw_only=True)
class EvaluationWork:
    """An evaluation's text to read and answers to write.

    `scores_own_split` is of the run's held-out text; `split_tokens` are of other prepared data. `num_answers` have
    `answer_tokens` each, at most, after prompts of `prompt_bytes` together. `counted` are lines on the figures,
    `uncounted` on parts of unknown size.
    """

    scores_own_split: bool = False
    split_tokens: int = 0
    text_bytes: int = 0
    rows: Sequence[RowsToScore] = ()
    num_answers: int = 0
    answer_tokens: int = 0
    prompt_bytes: int = 0
    is_bf16: bool = False
    counted: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

    @property
    def num_passes(self) -> int:
        """Return the passes of the answers, TEXTS_AT_ONCE texts at a time."""
        return math.ceil(self.num_answers / TEXTS_AT_ONCE) * self.answer_tokens

    def read_tokens(self, *, own_split: int, context_tokens: int, text_bytes_per_token: float) -> int:
        """Return the tokens of forward passes, prompts among them."""
        plain = (self.text_bytes + self.prompt_bytes) / text_bytes_per_token
        own = own_split if self.scores_own_split else 0
        of_rows = (
            rows.tokens(context_tokens=context_tokens, text_bytes_per_token=text_bytes_per_token) for rows in self.rows
        )
        return round(own + self.split_tokens + plain + sum(of_rows))

    def seconds(
        self,
        read_tokens: int,
        *,
        training_seconds_per_token: float,
        weight_bytes: float,
        memory_bytes_per_second: float | None,
    ) -> float:
        """Return the time of it on one device, with the command's start."""
        written = GenerationPlan(
            written_tokens=self.num_answers * self.answer_tokens,
            prompt_tokens=0,
            flops_per_step=0.0,
            num_passes=self.num_passes,
            weight_bytes=weight_bytes,
            memory_bytes_per_second=memory_bytes_per_second,
        )
        writing = written.seconds(step_seconds=training_seconds_per_token, tokens_per_step=1)
        reading = read_tokens * FORWARD_SHARE * training_seconds_per_token
        return START_SECONDS + reading + max(writing, self.num_passes * PASS_SECONDS)


def export_seconds(num_bytes: float, *, read_bytes: float) -> float:
    """Return the time of a folder of weights, read from a checkpoint and written."""
    return START_SECONDS + (read_bytes + num_bytes) / WRITE_BYTES_PER_SECOND


STATED: Final = "cluster.mfu"  # begins the source of a speed that the config states
Basis = Literal["measured", "stated", "assumed", ""]


def basis_of(source: str) -> Basis:
    """Return a speed's basis: measured on this machine, stated by the config, or assumed."""
    return "measured" if source.startswith(MEASURED) else "stated" if source.startswith(STATED) else "assumed"


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage; None where something is not known, and a `problem` where no plan exists.

    `tokens` are those read or written. `disk_bytes` are its files while it runs, at most, `kept_bytes` those that stay.
    `basis` is of its time, `reasons` are lines on all figures. `lacking` are lines on a plan beyond its devices or its
    budget. A stage that `is_done` needs nothing more.
    """

    name: str = ""
    verb: str = ""
    tokens: int | None = None
    seconds: float | None = None
    usd: float | None = None
    disk_bytes: int | None = None
    kept_bytes: int | None = None
    basis: Basis = ""
    reasons: tuple[str, ...] = ()
    problem: str = ""
    lacking: tuple[str, ...] = ()
    is_done: bool = False


def done_stage(name: str, verb: str) -> StagePlan:
    """Return the plan of a stage that has ended."""
    return StagePlan(name=name, verb=verb, seconds=0.0, usd=0.0, disk_bytes=0, kept_bytes=0, is_done=True)


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """All stages in their order; `free_bytes` are those of the disk, None where they are not known."""

    name: str
    stages: Sequence[StagePlan]
    free_bytes: int | None = None

    @property
    def seconds(self) -> float | None:
        """Return the time of all stages, None where one is not known."""
        return self._sum(lambda stage: stage.seconds)

    @property
    def usd(self) -> float | None:
        """Return the price of all stages."""
        return self._sum(lambda stage: stage.usd)

    @property
    def disk_bytes(self) -> int | None:
        """Return the most bytes at once: the files of the stage under way, and all that earlier ones keep."""
        kept, most = 0, 0
        for stage in self.stages:
            if stage.disk_bytes is None or stage.kept_bytes is None:
                return None
            most = max(most, kept + stage.disk_bytes)
            kept += stage.kept_bytes
        return most

    @property
    def fits_disk(self) -> bool | None:
        """Return whether the disk has room for it, None where one of both is not known."""
        if self.disk_bytes is None or self.free_bytes is None:
            return None
        return self.disk_bytes <= self.free_bytes

    @property
    def is_possible(self) -> bool:
        """Return whether every stage has a plan, and its devices are enough for it."""
        return not any(stage.problem or stage.lacking for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """Return plain values under stable keys for scripts."""
        together = {name: getattr(self, name) for name in ("seconds", "usd", "disk_bytes", "free_bytes", "fits_disk")}
        return {
            "pipeline": self.name,
            "stages": [asdict(stage) for stage in self.stages],
            "together": together,
            "ok": self.is_possible,
        }

    def _sum(self, figure: Callable[[StagePlan], float | None]) -> float | None:
        found = [figure(stage) for stage in self.stages]
        known = [one for one in found if one is not None]
        return sum(known) if len(known) == len(found) else None
