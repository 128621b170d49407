import pytest
import torch

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.models.llama import Llama
from lmtrain.precision import cpu_features
from lmtrain.precision.float8 import fp8_facts
from lmtrain.precision.policy import Precision, auto, bf16_mixed, bf16_true, fp16_mixed, fp32, tf32, tf32_facts


def model():
    built = Llama(width=32, num_layers=1, num_heads=2, feed_forward_width=48, vocab_size=65, max_context_tokens=16)
    built.initialize_weights(torch.Generator().manual_seed(0))
    return built


def with_gpu(monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


@pytest.mark.parametrize(
    ("precision", "matmul", "dtype", "casts"),
    [
        (fp32(), "fp32", torch.float32, False),
        (Precision(facts=tf32_facts()), "tf32", torch.float32, False),
        (fp16_mixed(), "fp16", torch.float16, True),
        (bf16_mixed(), "bf16", torch.bfloat16, True),
        (bf16_true(), "bf16", torch.bfloat16, False),
        (Precision(facts=fp8_facts()), "fp8", torch.bfloat16, True),
    ],
)
def test_a_precision_names_its_products_its_activations_and_its_bytes(precision, matmul, dtype, casts):
    assert (precision.matmul, precision.compute_dtype, precision.casts) == (matmul, dtype, casts)
    assert precision.describe().startswith(f"{precision.name} (asked for): products in {matmul}; bytes a parameter: ")


def test_a_line_tells_the_bytes_of_a_parameter():
    assert bf16_mixed().describe().endswith("4 weights + 2 copy + 4 gradients + 4 a moment")
    sharded = bf16_mixed().describe(strategy_casts=True)
    assert sharded.endswith("bytes a parameter: 4 weights + 4 gradients + 4 a moment"), "it casts as it gathers"


def test_only_fp16_needs_a_scaled_loss():
    assert [made.scales_loss for made in (fp32(), fp16_mixed(), bf16_mixed(), bf16_true())] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("flags", "name"), [({"avx2"}, "fp32"), ({"avx512_bf16"}, "bf16_mixed"), ({"amx_bf16", "avx2"}, "bf16_mixed")]
)
def test_auto_looks_for_bf16_matrix_hardware_of_the_cpu(monkeypatch, flags, name):
    monkeypatch.setattr(cpu_features, "cpu_flags", lambda: flags)
    found = auto(device_type="cpu")
    assert found.name == name
    assert found.reason.startswith("auto: ")


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "fp32"), ((8, 0), "bf16_mixed"), ((9, 0), "bf16_mixed")])
def test_auto_looks_for_bf16_matrix_hardware_of_the_gpu(monkeypatch, capability, name):
    with_gpu(monkeypatch, capability)
    found = auto(device_type="cuda")
    assert (found.name, found.reason) == (name, f"auto: compute capability {capability[0]}.{capability[1]}")


def test_tf32_is_refused_where_there_is_none(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"tf32 needs .* 8.0 or later, and this run is on cpu; .*=fp32"):
        tf32(device_type="cpu")
    with_gpu(monkeypatch, (7, 5))
    with pytest.raises(EnvironmentProblem, match=r"this one has 7.5; nearest valid: precision=fp32"):
        tf32(device_type="cuda")
    with_gpu(monkeypatch, tf32_facts().gpu_since)
    assert tf32(device_type="cuda").name == "tf32"


def test_bf16_true_rounds_the_parameters_and_leaves_rotary_angles_in_fp32():
    prepared = bf16_true().prepare(model(), strategy_casts=False)
    assert {parameter.dtype for parameter in prepared.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in prepared.buffers()} == {torch.float32}
    for rounded, exact in zip(prepared.parameters(), model().parameters(), strict=True):
        assert torch.equal(rounded, exact.bfloat16())


@pytest.mark.parametrize("strategy_casts", [False, True])
def test_copies_are_kept_unless_the_strategy_casts_what_it_gathers(strategy_casts):
    prepared = bf16_mixed().prepare(model(), strategy_casts=strategy_casts)
    assert any(buffer.dtype == torch.bfloat16 for buffer in prepared.buffers()) != strategy_casts


def test_fp32_leaves_the_model_as_it_is():
    plain = model()
    assert fp32().prepare(plain, strategy_casts=False) is plain
    assert not [name for name, _ in plain.named_buffers() if name.endswith("_copy")]


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
