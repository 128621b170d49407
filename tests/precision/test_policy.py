import pytest
import torch

from lmtrain.precision import cpu_features
from lmtrain.precision.policy import auto, bf16_mixed, fp32


@pytest.mark.parametrize(
    ("precision", "word", "dtype"), [(fp32(), "32-true", torch.float32), (bf16_mixed(), "bf16-mixed", torch.bfloat16)]
)
def test_a_format_has_the_trainer_s_word_and_the_dtype_of_its_products(precision, word, dtype):
    assert (precision.trainer_word, precision.compute_dtype, precision.reason) == (word, dtype, "asked for")


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "fp32"), ((8, 0), "bf16_mixed"), ((12, 0), "bf16_mixed")])
def test_auto_takes_bf16_on_gpus_that_have_it_in_hardware(monkeypatch, capability, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    chosen = auto()
    assert chosen.name == name
    assert chosen.reason == f"auto: compute capability {capability[0]}.{capability[1]}"


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        ("sse avx2 avx512f", "fp32", "a CPU without avx512_bf16 or amx_bf16"),
        ("sse avx512_bf16", "bf16_mixed", "avx512_bf16"),
        ("amx_bf16 avx512_bf16 sse", "bf16_mixed", "amx_bf16 and avx512_bf16"),
    ],
)
def test_auto_takes_bf16_on_cpus_that_have_it_in_hardware(monkeypatch, flags, name, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cpu_features, "cpu_flags", lambda: set(flags.split()))
    chosen = auto()
    assert (chosen.name, chosen.reason) == (name, f"auto: {reason}")
