import pytest

from lmtrain.composition import planned_setting as module
from lmtrain.composition.compose import compose_config
from lmtrain.composition.planned_setting import planned_setting


def setting(*words):
    return planned_setting(compose_config(list(words)), allowed=[])


def test_a_cluster_decides_the_devices_and_auto_what_suits_them():
    found = setting("cluster=h100_8x", "cluster.num_nodes=2")
    assert (found.num_ranks, found.precision, found.strategy, found.is_gpu) == (16, "bf16_mixed", "ddp", True)
    assert found.compute_dtype == "bfloat16"


def test_without_a_cluster_it_is_this_machine():
    found = setting("trainer.devices=2", "precision=fp32")
    assert (found.num_ranks, found.is_gpu, found.compute_dtype) == (2, False, "float32")
    assert found.peak() is None


@pytest.mark.parametrize(("flags", "precision"), [({"amx_bf16"}, "bf16_mixed"), (set(), "fp32")])
def test_auto_precision_asks_the_processor(monkeypatch, flags, precision):
    monkeypatch.setattr(module, "bf16_flags", lambda: flags)
    assert setting().precision == precision


def test_fp32_products_run_as_tf32_on_a_gpu():
    peak = setting("cluster=h100_8x", "precision=fp32").peak()
    assert peak is not None
    assert peak.flops == 494.7e12
