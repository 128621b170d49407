"""The scores of a chunk of tokens in Triton: largest logit and sum in one pass, the gradient written over the logits.

A row is read twice, the second time from the GPU's cache, and written once.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportArgumentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 4096  # of a row at once, by four warps: of fourteen settings the fastest on an H200


def write_scores(
    logits: Tensor,
    gradient: Tensor | None,
    targets: Tensor,
    nats: Tensor,
    log_z: Tensor,
    *,
    ignore_index: int,
    z_loss_weight: float,
    soft_cap: float | None,
    gradient_scale: float,
) -> None:
    """Write nats and log Z of each token, fp32 [C], and the gradient [C, V], which may be the logits themselves."""
    num_tokens, num_logits = logits.shape
    if not num_tokens:
        return
    with torch.cuda.device_of(logits):  # nothing for a CPU
        _score[num_tokens,](
            logits,
            logits if gradient is None else gradient,
            targets,
            nats,
            log_z,
            ignore_index,
            z_loss_weight,
            soft_cap or 0.0,
            gradient_scale,
            NUM_LOGITS=num_logits,
            HAS_CAP=soft_cap is not None,
            HAS_GRADIENT=gradient is not None,
            COLUMNS=min(COLUMNS, triton.next_power_of_2(num_logits)),
        )


@triton.jit
def _score(
    logits, gradient, targets, nats, log_z, ignore_index, z_weight, cap, scale,
    NUM_LOGITS: tl.constexpr, HAS_CAP: tl.constexpr, HAS_GRADIENT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    logits += row * NUM_LOGITS
    is_valid = target != ignore_index
    aim = tl.where(is_valid, target, 0)
    is_word = (aim >= 0) & (aim < NUM_LOGITS)
    aimed = tl.load(logits + aim, is_word, other=float("nan")).to(tl.float32)  # not another row's memory
    if HAS_CAP:
        aimed = _capped(aimed, cap)
    largest, total = -3.4028234663852886e38, 0.0  # fp32's least: logits of -inf are -inf below it, not NaN
    for first in range(0, NUM_LOGITS, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        score = tl.load(logits + column, column < NUM_LOGITS, other=float("-inf")).to(tl.float32)
        if HAS_CAP:
            score = tl.where(column < NUM_LOGITS, _capped(score, cap), float("-inf"))
        larger = tl.maximum(largest, tl.max(score, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(score - larger), 0)
        largest = larger
    of_row = tl.log(total) + largest
    tl.store(log_z + row, tl.where(is_valid, of_row, 0.0))
    tl.store(nats + row, tl.where(is_valid, tl.log(total) - (aimed - largest), 0.0))
    if HAS_GRADIENT:
        gradient += row * NUM_LOGITS
        aim = tl.where(is_valid, target, -1).to(tl.int32)
        share = tl.where(is_valid, scale * (1 + 2 * z_weight * of_row) / total, 0.0)
        for first in range(0, NUM_LOGITS, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            score = tl.load(logits + column, column < NUM_LOGITS, other=0.0).to(tl.float32)
            if HAS_CAP:
                score = _capped(score, cap)
            of_score = tl.exp(score - largest) * share - tl.where(column == aim, scale, 0.0)
            if HAS_CAP:
                of_score *= 1 - (score / cap) * (score / cap)
            tl.store(gradient + column, of_score.to(gradient.dtype.element_ty), column < NUM_LOGITS)


@triton.jit
def _capped(score, cap):
    return cap - 2 * cap / (1 + tl.exp(2 * score / cap))  # cap * tanh(score / cap)
