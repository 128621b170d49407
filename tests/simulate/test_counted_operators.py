"""A step's FLOPs three ways, against torch's counter on a real step and a loop over every pair of tokens."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lmtrain.accounting.model.flop_audit import (
    EXPERTS,
    FEED_FORWARD,
    HEAD,
    PROJECTIONS,
    RECURRENT,
    SCORES,
    AuditedBatch,
    FlopAudit,
    Pace,
)
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.delta_net import GatedDelta
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.latent_attention import LatentWidths
from lmtrain.models.llama import Llama
from lmtrain.models.mamba import Mamba2
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.nano import nano
from lmtrain.parallel.activation_checkpoint import every_block
from lmtrain.run.planning.flop_audits import document_lengths
from lmtrain.simulate.counted_operators import ON_CPU, count_fake_step, formula_products

ROWS, CONTEXT = 2, 72
LENGTHS = ((40, 1, 31), (7, 65))  # of the documents of each row
SIZES = {"width": 32, "num_heads": 4, "feed_forward_width": 48, "vocab_size": 67, "max_context_tokens": CONTEXT}
MAMBA = Mamba2(num_heads=4, head_width=16, state_width=8)
DELTA = GatedDelta(num_key_heads=2, num_value_heads=4, key_width=8, value_width=16)
MODELS = {
    "dense": lambda: Llama(**SIZES, num_layers=2),
    "gpt2": lambda: GPT2(width=32, num_layers=2, num_heads=4, vocab_size=67, max_context_tokens=CONTEXT),
    "windows": lambda: Llama(**SIZES, num_layers=4, window_tokens=16, window_pattern="SSSL"),
    "grouped heads": lambda: Llama(**SIZES, num_layers=2, num_kv_heads=2, value_embedding_layers=(1,)),
    "latent": lambda: Llama(
        **SIZES, num_layers=2, latent_attention=LatentWidths(latent=16, unrotated=8, rotated=4, value=8)
    ),
    "nano": lambda: nano(depth=2, vocab_size=67, max_context_tokens=CONTEXT),
    "experts": lambda: Llama(**SIZES, num_layers=2, experts=Experts(num_experts=8, num_experts_per_token=2)),
    "future": lambda: Llama(**SIZES, num_layers=2, num_future_tokens=1, embedding_skip=True),
    "mamba": lambda: Llama(**SIZES, num_layers=2, recurrent_layers=MAMBA, recurrent_pattern="RA"),
    "delta": lambda: Llama(**SIZES, num_layers=2, recurrent_layers=DELTA, recurrent_pattern="RA"),
}


def documents_of_rows() -> torch.Tensor:
    numbers = [[number for number, length in enumerate(row) for _ in range(length)] for row in LENGTHS]
    return torch.tensor(numbers, dtype=torch.int32)


def audited(build, *, masks: bool, recompute=None, pace=None) -> FlopAudit:
    with torch.device("meta"):
        model = build()
    shape, lengths = model.shape(), document_lengths(documents_of_rows().numpy()) if masks else None
    return FlopAudit(
        shape=shape,
        batch=AuditedBatch(num_tokens=ROWS * CONTEXT, context_tokens=CONTEXT, documents=lengths),
        flops=flops_per_token(shape, CONTEXT, documents=lengths),
        products=formula_products(model, shape),
        counted=count_fake_step(model, (ROWS, CONTEXT), masks_documents=masks, recompute=recompute),
        pace=pace,
    )


def counted_for_real(build, *, masks: bool, recompute=lambda model: model) -> int:
    model = build()
    model.initialize_weights(torch.Generator().manual_seed(0))
    model = recompute(model)
    tokens = torch.randint(67, (ROWS, CONTEXT), generator=torch.Generator().manual_seed(1))
    with FlopCounterMode(display=False, custom_mapping={**ON_CPU}) as counter:
        model(tokens, tokens, CrossEntropy(), documents_of_rows() if masks else None).objective.backward()
    return counter.get_total_flops()


def pairs_by_a_loop(documents: np.ndarray, window: int | None) -> int:
    return sum(
        int(row[earlier] == row[token] and (window is None or token - earlier < window))
        for row in documents
        for token in range(len(row))
        for earlier in range(token + 1)
    )


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_each_count_is_that_of_its_oracle(name, masks):
    build = MODELS[name]
    found = audited(build, masks=masks)
    shape, num_tokens = found.shape, ROWS * CONTEXT
    # The plan's figure; it rounds to whole FLOPs a token.
    assert sum(found.formula.values()) == pytest.approx(num_tokens * found.flops.palm, rel=1e-12)
    assert sum(found.counted.by_group.values()) == counted_for_real(build, masks=masks)
    documents = documents_of_rows().numpy() if masks else np.zeros((ROWS, CONTEXT))
    scores = 0
    for layer in shape.attention:
        if layer.state_flops is None:
            widths = layer.head_width + (layer.value_width or layer.head_width)
            scores += 3 * 2 * layer.num_heads * widths * pairs_by_a_loop(documents, layer.window_tokens)
    assert found.of_batch[SCORES] == pytest.approx(scores, rel=1e-12)  # a mean times the tokens it is over
    for group in (HEAD, PROJECTIONS, FEED_FORWARD, EXPERTS):
        exact = found.formula.get(group, 0)
        assert (found.counted.by_group.get(group, 0), found.of_batch.get(group, 0)) == (exact, exact), group
    assert found.of_batch.get(RECURRENT) == found.formula.get(RECURRENT)
    assert not [reason for reason, _ in found.differences if "not explained" in reason]


def test_recomputation_is_counted_apart():
    found = audited(MODELS["dense"], masks=True, recompute=every_block)
    real = counted_for_real(MODELS["dense"], masks=True, recompute=every_block)
    assert sum(found.counted.by_group.values()) + found.counted.recomputed == real
    assert found.counted.recomputed > 0
    assert found.conventions["operators"] * ROWS * CONTEXT == pytest.approx(real)


def test_an_mfu_of_121_percent_is_found_with_what_was_counted_wrongly():
    for name, convention, mfu in (("windows", "whole context", 1.21), ("experts", "all experts", 1.21),
                                  ("dense", "palm", 1.02), ("dense", "this batch", 1.21)):  # fmt: skip
        plain = audited(MODELS[name], masks=True)
        flops = plain.conventions[convention]
        pace = Pace(tokens_per_second=mfu * 8e14 / flops, peak_flops=1e14, num_devices=8)
        found = replace(plain, pace=pace)
        assert found.mfu[convention] == pytest.approx(mfu)
        (line,) = [line for line in found.findings if line.startswith(f"{convention}: an MFU of {mfu:.1%} is imposs")]
        own = plain.conventions["this batch"] / flops * mfu
        assert (f"this batch needs {own:.1%}" in line) == (own < 1)
        assert found.is_possible == (mfu == 1.21 and own < 1)


def test_documents_are_counted_by_their_lengths_row_by_row():
    assert document_lengths(documents_of_rows().numpy()) == Counter(length for row in LENGTHS for length in row)
    assert document_lengths(np.array([[0, 0, 1], [1, 1, 1]])) == {2: 1, 1: 1, 3: 1}
