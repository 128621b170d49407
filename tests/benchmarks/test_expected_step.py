"""The page on performance shows the bounds as the code derives them, and they are bounds."""

from pathlib import Path

import pytest

from benchmarks.harness.hopper.cases import CASES, composed, meta_model
from benchmarks.harness.hopper.products import Layer
from benchmarks.questions import expected_step
from lmtrain.accounting.machine.hardware import DEVICES
from lmtrain.accounting.model.flops import flops_per_token

pytestmark = pytest.mark.benchmarks

H200 = DEVICES["NVIDIA H200"]


def test_the_page_shows_what_the_code_derives():
    text = (Path(expected_step.__file__).parents[2] / "docs/performance.md").read_text()
    assert expected_step.page() in text, "run: python benchmarks/questions/expected_step.py"


def test_products_and_attention_are_the_causal_count_at_the_peak():
    config = composed(CASES[0], is_toy=False)
    flops = flops_per_token(meta_model(config).shape(), config["batch"]["context_tokens"])
    found = expected_step.bounds("llama_3_2_1b", H200)
    counted = found["products of the blocks"] + found["products of the head"] + found["attention"] * 12 / 14
    assert counted == pytest.approx(flops.causal / H200.half, rel=2e-3), "those of this model are bound by computing"


def test_fp8_halves_the_products_of_blocks_and_head_each_on_its_own():
    parts = ("products of the blocks", "products of the head")
    plain, blocks, both = (
        expected_step.bounds("llama_3_2_1b", H200, **formats)
        for formats in ({}, {"blocks": "fp8"}, {"blocks": "fp8", "head": "fp8"})
    )
    assert [blocks[part] / plain[part] for part in parts] == pytest.approx([0.5, 1.0], rel=1e-3)
    assert [both[part] / plain[part] for part in parts] == pytest.approx([0.5, 0.5], rel=1e-3)


def test_a_thin_product_is_bound_by_memory():
    layer = Layer("toy", "linear", num_rows=4096, num_inputs=64, num_outputs=4096, count=3)
    least = 3 * 3 * 2 * 4096 * 64 * 4096 / H200.half / 4096
    assert expected_step._product_seconds(layer, H200) > 3 * least
