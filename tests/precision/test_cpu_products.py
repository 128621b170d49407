"""The products of a processor that MKL knows badly; the processor is made up, the products are this machine's."""

import pytest
import torch

from lmtrain.models.llama import Llama
from lmtrain.precision import cpu_products
from lmtrain.precision.cpu_products import ONEDNN, cpu_matmul_precision, keeps_fp32, multiplying

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


def test_products_that_round_their_inputs_are_told_apart(monkeypatch):
    assert keeps_fp32("highest")
    exact = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda x, y: exact(x.bfloat16(), y.bfloat16()).float())
    assert not keeps_fp32("highest")


def test_torch_s_word_is_given_back():
    for word in ("high", "highest"):
        torch.set_float32_matmul_precision(word)
        with multiplying(ONEDNN):
            assert torch.get_float32_matmul_precision() == ONEDNN
        assert torch.get_float32_matmul_precision() == word


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
