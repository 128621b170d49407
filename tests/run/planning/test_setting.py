import pytest

from lmtrain.accounting.model.memory import COMPILED_HEAP_SHARE, COMPILER_BYTES
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning import setting as module
from lmtrain.run.planning.setting import planned_setting
from tests.configs import config_of


def setting(*words):
    return planned_setting(config_of(*words))


def test_a_cluster_decides_the_devices_and_auto_what_suits_them():
    found = setting("cluster=h100_8x", "cluster.num_nodes=2")
    assert (found.num_ranks, found.precision.name) == (16, "bf16_mixed")
    assert found.spread.shards_over is None
    assert found.precision.compute_dtype == "bfloat16"


@pytest.mark.parametrize(("flags", "precision"), [({"amx_bf16"}, "bf16_mixed"), (set(), "fp32")])
def test_auto_precision_asks_the_processor(monkeypatch, flags, precision):
    monkeypatch.setattr(module, "bf16_flags", lambda: flags)
    assert setting().precision.name == precision


@pytest.mark.parametrize(
    ("precision", "teraflops"),
    [
        ("fp32", 66.9),
        ("tf32", 494.7),
        ("fp16_mixed", 989.4),
        ("bf16_mixed", 989.4),
        ("bf16_true", 989.4),
        ("fp8", 989.4),  # of bf16: most of a step's products, or the rest, are in it
    ],
)
def test_every_precision_is_planned_with_its_own_peak_on_devices_that_are_not_here(precision, teraflops):
    found = setting("cluster=h100_8x", f"precision={precision}")
    peak = found.peak()
    assert peak is not None
    assert peak.flops == pytest.approx(teraflops * 1e12)
    assert (found.speed_line is not None) == (precision == "fp8")


@pytest.mark.parametrize(("words", "copy"), [([], 2), (["strategy=fsdp"], 0)])
def test_no_copy_is_kept_where_sharding_casts_what_it_gathers(words, copy):
    assert setting("cluster=h100_8x", "precision=bf16_mixed", *words).bytes_of.compute_copy == copy


@pytest.mark.parametrize("precision", ["bf16_mixed", "fp8"])
def test_a_rounded_residual_stream_is_planned(precision):
    words = ("cluster=h100_8x", f"precision={precision}")
    assert setting(*words).precision.residual is None
    assert setting(*words, "precision.residual=bf16").precision.residual == "bf16"
    with pytest.raises(ConfigurationError, match=r"precision\.residual must be bf16 or null, got fp16"):
        setting(*words, "precision.residual=fp16")


@pytest.mark.parametrize(
    ("words", "masks"),
    [
        (["batch.context_tokens=1024"], False),
        (["batch.context_tokens=1025"], True),
        (["compile=none"], True),
        (["compile=none", "attention=blocked"], False),
        (["packing.document_mask=false"], False),
        (["cluster=h100_8x"], False),
        (["cluster=h100_8x", "attention=sdpa"], True),
    ],
)
def test_masks_of_documents_count_where_a_kernel_keeps_them(words, masks):
    assert setting("compile=blocks", "packing.document_mask=true", *words).masks_documents is masks


def test_a_strategy_of_one_rank_is_refused_on_several():
    assert setting("strategy=single").num_ranks == 1
    with pytest.raises(
        ConfigurationError,
        match=r"strategy=single trains on 1 rank, not 8 .*use one of strategy=auto, context, ddp, fsdp",
    ):
        setting("strategy=single", "cluster=h100_8x")


def test_a_cpu_counts_its_process_and_a_gpu_of_the_table_does_not(tmp_path):
    here = setting("trainer.accelerator=cpu", f"run.cache={tmp_path}").host
    assert here is not None
    assert (here.snapshot_from_bytes, here.heap_share) == (50_000_000, COMPILED_HEAP_SHARE)
    assert here.workspace_heap_share == COMPILED_HEAP_SHARE
    eager = setting("trainer.accelerator=cpu", "compile=none", f"run.cache={tmp_path}").host
    assert eager is not None
    assert here.process_bytes - eager.process_bytes == COMPILER_BYTES
    assert setting("cluster=h100_8x").host is None
