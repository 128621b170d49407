"""Facts of the smaller options; silence is the plain case, each class without arguments."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError, DataError, suggest

MIN_CHUNKS: Final = 8  # of a chunked loss, at small batches too
BLOCKED_UP_TO_TOKENS: Final = 1024  # the longest context of a compiled attention in blocks of rows


@dataclass(frozen=True, kw_only=True)
class AttentionFacts:
    """An attention; `measured_as` is the target of a kernel with the same memory, where its own cannot be measured.

    `chooses`: it picks the fastest kernel of the device. `is_fused`: one kernel, without scores in memory. In contexts
    beyond `masks_beyond` tokens each layer keeps a mask of documents, of all pairs of tokens; None: in none.
    `without_gpu` are the words in its place on a machine without a GPU, None where it needs none.
    """

    group: ClassVar[str] = "attention"
    measured_as: str | None = None
    chooses: bool = False
    is_fused: bool = True
    masks_beyond: int | None = 0
    without_gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecomputeFacts:
    """A recomputation; `is_cut` where the compiler, if any, decides about a block's kept tensors.

    `share` of the model's blocks compute their products with weights twice. `chooses`: a plan puts another one in its
    place, the first with room for enough tokens at a time.
    """

    group: ClassVar[str] = "recompute"
    recomputes: bool = True
    is_cut: bool = False
    share: float = 1.0
    chooses: bool = False

    @property
    def keeps_all(self) -> bool:
        """Return whether nothing is computed again, in any plan."""
        return not self.recomputes and not self.chooses

    @property
    def keeps_least(self) -> bool:
        """Return whether of every block only its input is kept."""
        return self.recomputes and not self.is_cut and self.share == 1.0


@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """A loss; `makes_head_products`: the head's products are its own, and it can make them in fp8.

    `in_chunks`: it never holds the scores of all tokens. `takes_shards`: it is plain cross-entropy, a sum over shards
    of a vocabulary. `without_gpu` are the words in its place on a machine without a GPU, None where it needs none.
    At most `chunk_tokens` are scored at once, None: all. `num_eager_tensors` in fp32 has a loss of all scores that no
    compiler fuses.
    """

    group: ClassVar[str] = "loss"
    makes_head_products: bool = False
    in_chunks: bool = False
    takes_shards: bool = True
    without_gpu: str | None = None
    chunk_tokens: int | None = None
    num_eager_tensors: int = 3  # scores, their log-probabilities, and the gradient
    num_further_tensors: int = 0  # of a chunk's scores in fp32, as those of a teacher

    def workspace(
        self,
        *,
        num_tokens: float,
        vocab_size: float,
        width: int,
        value_bytes: int,
        stream_bytes: int,
        is_compiled: bool,
    ) -> int:
        """Return the most bytes of the loss at once, next to the hidden states of `stream_bytes` a number.

        Compiled, scores are kept in the products' format of `value_bytes`; their gradient is made in fp32 and cast.
        Chunks have their gradient in the place of their scores, and add up the head's gradient in fp32.
        """
        if self.chunk_tokens is None:
            of_score = 4 + 2 * value_bytes if is_compiled else 4 * self.num_eager_tensors
            return round(num_tokens * vocab_size * of_score)
        chunk = min(self.chunk_tokens, max(1.0, num_tokens / MIN_CHUNKS))
        eager = 4 if value_bytes == 4 else 4 + value_bytes
        of_score = (2 * value_bytes if is_compiled else eager) + 4 * self.num_further_tensors
        return round(chunk * vocab_size * of_score + vocab_size * width * 4 + num_tokens * width * stream_bytes)


@dataclass(frozen=True, kw_only=True)
class HeldOutPasses:
    """Passes over a held-out split during a run, by number or by steps, with a limit of tokens.

    Raises: ConfigurationError under the validation's keys for both at once, and for one below 1.
    """

    split: str
    num_passes: int | None = None
    every_steps: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.num_passes is not None and self.every_steps is not None:
            raise ConfigurationError(
                f"callbacks.validation.num_passes={self.num_passes} and every_steps={self.every_steps} are two answers "
                "to one question; set one of them to null."
            )
        for name, value in (("num_passes", self.num_passes), ("every_steps", self.every_steps)):
            require_count(f"callbacks.validation.{name}", value)

    def require_split(self, known: Collection[str], *, of: str) -> None:
        """Refuse data without the split; `of` names it, `known` are its splits."""
        if self.split not in known:
            raise DataError(
                f"{of} has no split '{self.split}' to measure, only {', '.join(known)}; prepare it with "
                "data.folder.validation_fraction=0.05 (data=external: data.folder.validation=[FILE]), or train without "
                f"scores: callbacks.validation=null.{suggest(self.split, known)}"
            )

    def during(self, num_steps: int) -> int:
        """Return the passes after the first of `num_steps`, the last step's own included."""
        return -(-num_steps // self.every_steps) if self.every_steps else min(self.num_passes or 1, num_steps)


@dataclass(frozen=True, kw_only=True)
class CallbackFacts:
    """A callback; `acts_between_steps`: a measurement of steps does without; `stops_on_signals`: it ends a run early.

    `reads` is held-out text; `judges`: the metric of another callback's reads during the run that it acts on.
    `num_kept` checkpoints stay on disk; states from `snapshot_from_bytes` on are copied before they are written.
    `answers_spikes`: it ends a run after one, or undoes it.
    `ends_at_budget`: it ends a run at its last step; `keeps_time`: it moves that step under a budget of time.
    `patience`: it ends a run after this number of passes without a better one, None: at another sign, or never.
    """

    group: ClassVar[str] = "callbacks"
    acts_between_steps: bool = False
    stops_on_signals: bool = False
    reads: HeldOutPasses | None = None
    judges: str | None = None
    num_kept: int = 0
    snapshot_from_bytes: int | None = None
    answers_spikes: bool = False
    ends_at_budget: bool = False
    keeps_time: bool = False
    patience: int | None = None


@dataclass(frozen=True, kw_only=True)
class SpikeFacts:
    """An answer to spikes; `takes_back`: weights and optimizer state are copied for the time of a step."""

    group: ClassVar[str] = "spikes"
    takes_back: bool = False


@dataclass(frozen=True, kw_only=True)
class CompileFacts:
    """A compilation; `falls_back`: it runs eagerly where the machine has no compiler."""

    group: ClassVar[str] = "compile"
    compiles: bool = True
    falls_back: bool = False


@dataclass(frozen=True, kw_only=True)
class ScheduleFacts:
    """A schedule of the learning rate; `decays`: it ends below its peak."""

    group: ClassVar[str] = "schedule"
    decays: bool = False


@dataclass(frozen=True, kw_only=True)
class PackingFacts:
    """A packing; `row_is_document`: a training row holds one document, however short.

    `index` names its file of fitted rows.
    `needs_conversations`: only the assistant's words carry loss, and text has none of them.
    """

    group: ClassVar[str] = "packing"
    row_is_document: bool = False
    index: str | None = None
    needs_conversations: bool = False

    def epoch_tokens(self, num_tokens: int, *, num_documents: int, context_tokens: int) -> int:
        """Return the tokens of all training rows once, padding included but that of fitted rows."""
        return num_documents * context_tokens if self.row_is_document else num_tokens


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """A source: `has_conversations`, lists of messages, or else the words for them, "" where it has none.

    `has_pairs`: each conversation is followed by itself with a worse answer.
    """

    group: ClassVar[str] = "source"
    has_conversations: bool
    with_conversations: str = ""
    has_pairs: bool = False

    @classmethod
    def of_columns(
        cls,
        *,
        text_column: str | None = None,
        messages_column: str | None = None,
        columns: Mapping[str, str] | None = None,
        conversations: bool = False,
    ) -> "SourceFacts":
        """Return the facts of rows by their named columns, as `row_shapes.shape_of` reads them."""
        has_text = text_column is not None or "text" in (columns or {})
        has_parts = messages_column is not None or any(part != "text" for part in columns or {})
        return cls(
            has_conversations=has_parts or (conversations and not has_text),
            with_conversations=f"{'source.text_column=null ' if has_text else ''}source.conversations=true",
        )


@dataclass(frozen=True, kw_only=True)
class AverageFacts:
    """An average of the weights, by its bytes a parameter."""

    group: ClassVar[str] = "weight_average"
    num_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ScalingFacts:
    """The number, depth or width, by which a model's settings are carried over to its other sizes."""

    group: ClassVar[str] = "model"
    carries_over: Literal["depth", "width"] | None = None


@dataclass(frozen=True, kw_only=True)
class ObjectiveFacts:
    """An objective other than the loss of next tokens, by the word of its task.

    `rows_together` neighbouring rows are one example, and so are `copies` of one row. The same rows serve `num_uses`
    steps. `num_new_tokens` are written to each row before it is learned from, at most. `scores_ahead`: the starting
    model scores the rows before the first step. `keeps_start`: it stays in memory, frozen.
    `takes_teacher`: another model does, and rows of text are as good as answers.
    """

    group: ClassVar[str] = "objective"
    task: str
    rows_together: int = 1
    copies: int = 1
    num_uses: int = 1
    num_new_tokens: int = 0
    scores_ahead: bool = False
    keeps_start: bool = False
    takes_teacher: bool = False

    @property
    def example_rows(self) -> int:
        """Return the rows of an example."""
        return self.rows_together * self.copies
