"""The products of a processor that MKL knows badly; the processor is made up, the products are this machine's."""

import json
from pathlib import Path

import pytest
import torch

from lmtrain.models.llama import Llama
from lmtrain.precision import cpu_products
from lmtrain.precision.cpu_products import ONEDNN, cpu_matmul_precision, multiplying
from lmtrain.precision.policy import bf16_true
from tests import forked, tiny
from tests.data.documents import make_dataset


def model():
    built = Llama(width=32, num_layers=1, num_heads=2, feed_forward_width=48, vocab_size=65, max_context_tokens=16)
    built.initialize_weights(torch.Generator().manual_seed(0))
    return built


def test_bf16_true_rounds_the_parameters_and_leaves_rotary_angles_in_fp32():
    prepared = bf16_true().prepare(model(), strategy_casts=False)
    assert {parameter.dtype for parameter in prepared.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in prepared.buffers()} == {torch.float32}
    for rounded, exact in zip(prepared.parameters(), model().parameters(), strict=True):
        assert torch.equal(rounded, exact.bfloat16())


def lost_updates(*, dtype, steps=100, update=1e-3):
    """Return how far a weight of 1 comes under updates of a thousandth, each a third of bf16's step below 1."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=update)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return 1 - weight.item()


def test_in_bf16_small_updates_are_lost_and_in_fp32_none_is():
    assert lost_updates(dtype=torch.float32) == pytest.approx(0.1, rel=1e-4)
    assert lost_updates(dtype=torch.bfloat16) == 0.0


AMD, INTEL = "AMD EPYC 9755", "Intel(R) Xeon(R)"


@pytest.fixture
def on_cpu(monkeypatch):
    """Give this machine another name and other flags, and oneDNN's products another width."""

    def pretend(*, name=AMD, flags=frozenset({"avx512f"}), keeps=True):
        for library in ("mkl", "mkldnn"):
            monkeypatch.setattr(getattr(torch.backends, library), "is_available", lambda: True)
        monkeypatch.setattr(cpu_products, "cpu_name", lambda: name)
        monkeypatch.setattr(cpu_products, "cpu_flags", lambda: set(flags))
        monkeypatch.setattr(cpu_products, "keeps_fp32", lambda word: keeps)
        cpu_matmul_precision.cache_clear()
        return cpu_matmul_precision()

    yield pretend
    cpu_matmul_precision.cache_clear()


def test_only_a_processor_that_mkl_neglects_and_onednn_serves_in_fp32_has_other_products(on_cpu):
    assert on_cpu() == ONEDNN
    assert on_cpu(keeps=False) == "highest"  # as with matrix units, which round to bf16
    assert on_cpu(name=INTEL) == "highest"
    assert on_cpu(flags={"avx2"}) == "highest"


def gradients(word):
    model = Llama(width=64, num_layers=2, num_heads=2, feed_forward_width=96, vocab_size=128, max_context_tokens=32)
    model.initialize_weights(torch.Generator().manual_seed(0))
    tokens = torch.randint(128, (4, 32), generator=torch.Generator().manual_seed(1))
    with multiplying(word):
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_gradients_are_those_of_other_products_and_the_same_each_time():
    chosen = gradients(cpu_matmul_precision())
    torch.testing.assert_close(chosen, gradients("highest"), atol=1e-5, rtol=1e-5)
    assert all(map(torch.equal, chosen, gradients(cpu_matmul_precision())))


SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def ranks(request, tmp_path_factory):
    """What each rank saw in each precision."""
    folder = tmp_path_factory.mktemp(request.param)
    make_dataset(folder / "data", [400] * 8, num_ids=257)
    environment = tiny.environment()
    finished = forked.run(SCRIPT, [request.param, str(folder)], folder=folder, environment=environment, num_ranks=2)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.distributed
def test_an_infinity_on_one_rank_skips_the_step_on_both(ranks):
    for rank in ranks:
        first, second, third = rank["broken"]["sums"]
        assert first == second
        assert second != third
        assert rank["broken"]["scale"] == 2.0**15
    assert ranks[0]["broken"]["sums"] == ranks[1]["broken"]["sums"]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("precision", ["fp32", "fp16_mixed", "bf16_mixed", "bf16_true"])
def test_every_precision_trains_over_ranks_and_stays_near_fp32(ranks, precision):
    ours, theirs = (rank[precision] for rank in ranks)
    assert ours["sums"] == theirs["sums"]
    assert ours["dtypes"] == ["torch.bfloat16" if precision == "bf16_true" else "torch.float32"]
    assert ours["losses"] == pytest.approx(ranks[0]["fp32"]["losses"], rel=1e-2)
