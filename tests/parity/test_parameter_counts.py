"""Every published model has exactly the published number of parameters, without a byte of memory for them."""

import re

import pytest
import torch

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.schema.check import check_node
from lmtrain.run.schema.node import instantiate

# From the published weights: the sums over their safetensors, tied heads counted once.
PUBLISHED = {
    "gpt2_124m": 124_439_808,
    "gpt2_355m": 354_823_168,
    "gpt2_774m": 774_030_080,
    "gpt2_1558m": 1_557_611_200,
    "llama_2_7b": 6_738_415_616,
    "llama_3_8b": 8_030_261_248,
    "llama_3_70b": 70_553_706_496,
    "llama_3_1_8b": 8_030_261_248,
    "llama_3_1_70b": 70_553_706_496,
    "llama_3_405b": 405_853_388_800,
    "llama_3_2_1b": 1_235_814_400,
    "llama_3_2_3b": 3_212_749_824,
    "qwen_3_0_6b": 596_049_920,
    "qwen_3_1_7b": 1_720_574_976,
    "qwen_3_4b": 4_022_468_096,
    "qwen_3_8b": 8_190_735_360,
    "qwen_3_14b": 14_768_307_200,
    "qwen_3_32b": 32_762_123_264,
    "mistral_7b": 7_241_732_096,
    "qwen_3_30b_a3b": 30_532_122_624,
    "qwen_3_235b_a22b": 235_093_634_560,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3": 671_026_404_352,
    "qwen_3_next_80b_a3b": 79_674_391_296,
    "lfm2_350m": 354_483_968,
    "lfm2_700m": 742_489_344,
    "lfm2_1_2b": 1_170_340_608,
    "nemotron_h_8b": 8_100_852_736,
}
ACTIVE = {
    "qwen_3_30b_a3b": 3_353_032_704,
    "gpt_oss_20b": 4_187_440_704,
    "gpt_oss_120b": 5_711_982_912,
    "deepseek_v3": 37_552_282_624,
}


def shape(*overrides):
    node = check_node(compose_config([*overrides, "tokenizer=folder", "tokenizer.path=x"])["model"], key="model")
    with torch.device("meta"):
        return instantiate(node, key="model").shape()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_published_count(name):
    assert shape(f"model={name}", "tokenizer.vocab_size=300").num_parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_meets_the_known_number_of_parameters(name):
    assert shape(f"model={name}", "tokenizer.vocab_size=300").num_active_parameters == ACTIVE[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_its_help_line_names_the_count(name):
    first = (conf_folder() / "model" / f"{name}.yaml").read_text().splitlines()[0]
    named = re.search(r"([\d,]+) parameters", first)
    assert named is not None
    assert int(named[1].replace(",", "")) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("depth", "pattern", "total", "scaling", "flops"),
    [
        (12, "SSSL", 286_261_730, 110_100_912, 7.5970e8),
        (24, "SSSL", 1_384_122_122, 729_810_624, 4.775225e9),
        (24, "L", 1_384_122_122, 729_810_624, 5.284833e9),
    ],
)
def test_the_depth_dial_gives_the_known_counts(depth, pattern, total, scaling, flops):
    counted = shape(
        "model=nano",
        f"model.depth={depth}",
        f"model.window_pattern={pattern}",
        "tokenizer.vocab_size=32768",
        "batch.context_tokens=2048",
        "batch.tokens_per_step=524288",
    )
    assert counted.num_parameters == total
    assert counted.num_matmul_parameters == scaling
    assert flops_per_token(counted, 2048).palm == pytest.approx(flops, rel=1e-6 if depth == 24 else 1e-5)
