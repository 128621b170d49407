"""The FLOPs of one real step counted three ways, why they differ, and the utilization by each convention.

By the formula that plan and MFU use, by the operators that run, and by the tokens that each token of the batch sees.
Megatron-LM once reported an MFU of 121%: attention was counted over whole rows of packed documents.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lmtrain.accounting.model.flops import FlopsPerToken, flops_per_token, mask_flops, state_flops
from lmtrain.accounting.model.model_shape import ModelShape

HEAD, PROJECTIONS, SCORES = "embedding and head", "attention projections", "attention scores"
FEED_FORWARD, EXPERTS, RECURRENT, PRODUCTS = "feed-forward", "experts", "recurrent layers", "products with weights"
GROUPS: Final = (HEAD, PRODUCTS, PROJECTIONS, SCORES, FEED_FORWARD, EXPERTS, RECURRENT)
EXPLAINED: Final = 0.01  # of a step: a smaller difference needs no line
BATCH: Final = "this batch"
SKIPPED: Final = "the kernel skips pairs that the mask hides"


@dataclass(frozen=True, kw_only=True)
class AuditedBatch:
    """A step's tokens; `documents` counts its documents by length, None where each row sees all of itself.

    `loss_share` of the tokens have loss. `is_real` is False where no data was read.
    """

    num_tokens: int
    context_tokens: int
    documents: Mapping[int, int] | None = None
    loss_share: float = 1.0
    is_real: bool = True


@dataclass(frozen=True)
class CountedOperators:
    """A step's operators: FLOPs by group, those of scores again in a fused backward pass, and of recomputation."""

    by_group: Mapping[str, int]
    scores_again: int
    recomputed: int = 0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Tokens per second, of which the log counts `counted_share`, on devices of a peak."""

    tokens_per_second: float
    peak_flops: float
    num_devices: float
    counted_share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FlopAudit:
    """FLOPs of one step; `products` are a token's by the formula and group, `flops` its conventions by the plan."""

    shape: ModelShape
    batch: AuditedBatch
    flops: FlopsPerToken
    products: Mapping[str, float]
    counted: CountedOperators
    pace: Pace | None = None

    @property
    def formula(self) -> dict[str, float]:
        """Return the reported FLOPs by group."""
        state = state_flops(self.shape)
        scores = self.flops.palm - sum(self.products.values()) - state
        return self._of_step({SCORES: scores}, state)

    @property
    def of_batch(self) -> dict[str, float]:
        """Return the FLOPs that the batch needs, by group."""
        scores = mask_flops(self.shape, self.batch.context_tokens, documents=self.batch.documents)
        return self._of_step({SCORES: scores}, state_flops(self.shape))

    def _of_step(self, scores: Mapping[str, float], state: float) -> dict[str, float]:
        found = {**self.products, **scores}
        found[RECURRENT] = found.get(RECURRENT, 0.0) + state
        return {name: found[name] * self.batch.num_tokens for name in GROUPS if found.get(name)}

    @property
    def conventions(self) -> dict[str, float]:
        """Return a token's FLOPs by convention, those of mistakes too where they would differ."""
        shape, idle = self.shape, self.shape.num_parameters - self.shape.num_active_parameters
        open_layers = tuple(replace(layer, window_tokens=None) for layer in shape.attention)
        whole = flops_per_token(replace(shape, attention=open_layers), self.batch.context_tokens).palm
        operators = sum(self.counted.by_group.values()) + self.counted.recomputed
        return {
            "palm": self.flops.palm,
            "causal": self.flops.causal,
            BATCH: sum(self.of_batch.values()) / self.batch.num_tokens,
            "operators": operators / self.batch.num_tokens,
            "six_n": self.flops.six_n,
            **({"whole context": whole} if whole > self.flops.palm * (1 + EXPLAINED) else {}),
            **({"all experts": self.flops.palm + 6 * idle} if idle else {}),
        }

    @property
    def mfu(self) -> dict[str, float]:
        """Return the utilization by convention; the logged ones are of the tokens that the log counts."""
        if (pace := self.pace) is None:
            return {}
        whole = pace.tokens_per_second / (pace.peak_flops * pace.num_devices)
        shares = {"palm": pace.counted_share, "causal": pace.counted_share}
        return {name: flops * whole * shares.get(name, 1.0) for name, flops in self.conventions.items()}

    @property
    def is_possible(self) -> bool:
        """Return whether no reported utilization is above the peak."""
        return all(self.mfu.get(name, 0.0) <= 1 for name in ("palm", "causal", BATCH))  # a run logs the first two

    @property
    def differences(self) -> list[tuple[str, float]]:
        """Return each difference of over 1% of a step as a reason and its FLOPs, the largest first."""
        formula, batch, counted = self.formula, self.of_batch, self.counted.by_group
        half = (self.flops.palm - self.flops.causal) * self.batch.num_tokens
        scores = formula.get(SCORES, 0.0)
        kernel = counted.get(SCORES, 0.0) - scores - self.counted.scores_again
        found = [
            ("the formula counts the later tokens too, which a causal mask hides", half),
            (_of_documents(self.batch), scores - half - batch.get(SCORES, 0.0)),
            ("operators: the fused backward pass computes scores again", self.counted.scores_again),
            (f"operators: {_of_kernel(self.shape, self.batch) if kernel > 0 else SKIPPED}", kernel),
            ("operators: recomputation, in no MFU", self.counted.recomputed),
            ("operators: chunks of tokens multiply one another, the formula has a state alone",
             counted.get(RECURRENT, 0.0) - formula.get(RECURRENT, 0.0)),
        ]  # fmt: skip
        found += [
            (f"operators: {name}, not explained", counted.get(name, 0.0) - formula.get(name, 0.0))
            for name in GROUPS
            if name not in (SCORES, RECURRENT)
        ]
        least = EXPLAINED * sum(formula.values())
        return sorted((one for one in found if abs(one[1]) > least), key=lambda one: -abs(one[1]))

    @property
    def findings(self) -> list[str]:
        """Return a line for each impossible utilization: what it counts, and what the batch needs."""
        mfu, own = self.mfu, self.mfu.get(BATCH, 0.0)
        if own > 1:
            why = "check tokens per second, the peak and the number of devices"
            return [f"{BATCH}: an MFU of {own:.1%} is impossible, and no convention's is right: {why}."]
        wrong = {
            "palm": "it counts attention to tokens that the mask hides",
            "causal": "it counts documents of the data's mean length",
            "operators": "the kernels skip what these operators would compute",
            "six_n": "it counts parameters that only look up",
            "whole context": "it counts attention to the whole context, beyond windows and documents",
            "all experts": "it counts the experts that a token is not sent to",
        }
        return [
            f"{name}: an MFU of {mfu[name]:.1%} is impossible: {what}; this batch needs {own:.1%}."
            for name, what in wrong.items()
            if mfu.get(name, 0.0) > 1
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain numbers, FLOPs of one step."""
        columns = {"formula": self.formula, "operators": self.counted.by_group, "batch": self.of_batch}
        return {
            "batch": asdict(self.batch) | {"documents": self.batch.documents and sum(self.batch.documents.values())},
            "flops": {
                group: {column: counts.get(group, 0.0) for column, counts in columns.items()} for group in GROUPS
                if any(counts.get(group) for counts in columns.values())
            },
            "recomputed_flops": self.counted.recomputed,
            "flops_per_token": self.conventions,
            "differences": [{"reason": reason, "flops": flops} for reason, flops in self.differences],
            "pace": None if self.pace is None else asdict(self.pace),
            "mfu": self.mfu,
            "findings": self.findings,
            "ok": self.is_possible,
        }  # fmt: skip


def _of_documents(batch: AuditedBatch) -> str:
    if batch.documents is None:
        return "the formula counts documents that this batch sees whole"
    return f"this batch's {sum(batch.documents.values()):,} documents are not of the lengths that the formula counts"


def _of_kernel(shape: ModelShape, batch: AuditedBatch) -> str:
    has_windows = any(layer.window_tokens for layer in shape.attention)
    causes = [word for word, is_there in (("windows", has_windows), ("documents", batch.documents)) if is_there]
    reasons = [f"masked pairs beyond {' and '.join(causes)} are computed"] if causes else []
    if any(layer.value_width not in (None, layer.head_width) for layer in shape.attention):
        reasons.append("values are padded to the width of keys")
    return ", ".join(reasons) or "attention that the formula leaves out"
