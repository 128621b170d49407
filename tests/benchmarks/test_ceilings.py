"""The ceilings are measured at the models' own shapes, and every part runs as a toy."""

import json
import sys
from functools import cache

import pytest
import torch

from benchmarks.harness.hopper import attention, losses, optimizers, products
from benchmarks.harness.hopper.cases import CASES, composed, last_of_each, meta_model
from benchmarks.harness.hopper.ceilings_page import page
from benchmarks.harness.hopper.rows import this_machine
from benchmarks.questions import ceilings
from lmtrain.accounting.model.flops import flops_per_token

CPU = torch.device("cpu")
layers, shapes, config_of = cache(products.layers), cache(attention.shapes), cache(composed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_products_are_all_that_the_model_multiplies_by(case):
    shape = meta_model(config_of(case, is_toy=False)).shape()
    mine = [layer for layer in layers(is_toy=False) if layer.model == case.name]
    assert sum(layer.count * layer.num_inputs * layer.num_outputs for layer in mine) == shape.num_matmul_parameters


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_attention_is_that_of_every_layer(case):
    config = config_of(case, is_toy=False)
    mine = [shape for shape in shapes(is_toy=False) if shape.model == case.name]
    shape = meta_model(config).shape()
    assert sum(one.count for one in mine) == len(shape.attention)
    tokens = config["batch"]["micro_batch_sequences"] * config["batch"]["context_tokens"]
    flops = flops_per_token(shape, config["batch"]["context_tokens"])
    counted = sum(3 * 4 * one.count * one.num_pairs * one.head_width for one in mine) / tokens
    assert counted == pytest.approx(flops.causal - 6 * shape.num_matmul_parameters, rel=1e-3)


def test_the_shapes_are_those_of_llama_3_2_1b():
    found = {layer.name: layer for layer in layers(is_toy=False) if layer.model == "llama_3_2_1b"}
    qkv, head = found["self_attention.qkv"], found["head"]
    assert (qkv.num_rows, qkv.num_inputs, qkv.num_outputs, qkv.count) == (16 * 4096, 2048, 2048 + 2 * 512, 16)
    assert (head.num_rows, head.num_inputs, head.num_outputs) == (4096, 2048, 128_256)


@pytest.mark.parametrize("kind", products.KINDS)
def test_products_in_both_formats_are_those_of_a_linear_layer(kind):
    layer = products.Layer("toy", "linear", 32, 16, 48, 1)
    wanted = {"forward": (32, 48), "of inputs": (32, 16), "of weights": (48, 16)}[kind]
    torch.manual_seed(0)
    exact = products.product(layer, kind, "bf16", CPU)()
    torch.manual_seed(0)
    narrow = products.product(layer, kind, "fp8", CPU)()
    assert exact.shape == narrow.shape == wanted
    assert 0 < (narrow - exact).norm() / exact.norm() < 0.1, "random numbers, rounded to 8 bits"


@pytest.mark.parametrize("name", ["auto", "sdpa", "sdpa flash", "blocked"])
def test_attention_runs_forward_and_backward(name):
    shape = attention.Shape("toy", 2, 32, 4, 2, 16, None)
    forward, both = attention.calls(shape, name, CPU, torch.float32)
    assert forward().shape == (2, 4, 32, 16)
    assert [gradient.shape[1] for gradient in both()] == [4, 2, 2]


def test_what_cannot_run_says_why():
    shape = attention.Shape("toy", 2, 32, 4, 2, 16, None)
    row = this_machine(is_toy=True).measured(
        {"kernel": "flash 4"}, lambda: {"calls": attention.calls(shape, "flash 4", CPU, torch.float32)}
    )
    assert row["not_measured"].startswith("attention=flash needs an NVIDIA GPU")


@pytest.mark.parametrize("name", ["cross_entropy", "chunked 2048"])
def test_losses_return_both_gradients(name):
    call = losses.step(name, {"num_tokens": 16, "vocab_size": 32, "width": 8}, None, CPU)
    assert [gradient.shape for gradient in call()] == [(1, 16, 8), (32, 8)]


@pytest.mark.parametrize("how", optimizers.STEPS)
def test_every_way_to_step_steps(how):
    optimizers.step([torch.Size((4, 3)), torch.Size((3,))], how, CPU)()


def test_a_cpu_makes_toys_and_names_no_peak():
    bench = this_machine(is_toy=False)
    if bench.device.type == "cpu":
        assert bench.is_toy
        assert bench.peak_flops("bf16") is None


def test_the_report_is_on_disk_after_every_part_and_the_page_shows_it(tmp_path):
    path = tmp_path / "ceilings.json"
    report = ceilings.measure(["copies", "optimizer"], is_toy=True, path=path)
    assert json.loads(path.read_text())["parts"] == report["parts"]
    text = page(report, command="x")
    assert "No figure of it says anything" in text
    assert "| host to device | not measured: no GPU" in text or torch.cuda.is_available()
    assert text.count("norm, fused with the factor inside") == len(CASES)


def test_a_toy_is_not_kept_among_the_results(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ceilings.py", "--toy", "--hardware", "h200"])
    with pytest.raises(SystemExit, match="2"):
        ceilings.main()
    assert "a toy's figures are not kept" in capsys.readouterr().err


def test_an_override_that_comes_again_takes_the_place_of_the_first():
    assert last_of_each(["a=1", "b=2", "a=3"]) == ["a=3", "b=2"]
