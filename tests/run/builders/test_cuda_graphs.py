"""Which runs may record their micro-steps; said without a device of that kind."""

from collections.abc import Callable
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.builders.cuda_graphs import graphs_of
from lmtrain.run.execution.meta_build import build_on_meta
from lmtrain.run.stored_runs.job import Job
from lmtrain.training.micro_step_graph import CudaGraph
from tests.configs import config_of

ON = "compile.cuda_graphs=true"


def asked(*words: str) -> Any:
    return graphs_of(config_of(*words))


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtrain.run.builders.cuda_graphs.device_type", lambda accelerator: "cuda")


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("option", ["auto", "model", "blocks", "none"])
def test_every_way_to_compile_can_be_recorded_on_a_gpu_and_is_not_unless_asked(option: str) -> None:
    assert asked(f"compile={option}", ON) is CudaGraph
    assert asked(f"compile={option}") is None


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16_mixed", "bf16_true"])
def test_precisions_without_a_scaled_loss_are_recorded(precision: str) -> None:
    assert asked(ON, f"precision={precision}") is CudaGraph


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("strategy=ddp", "strategy=ddp on 1 rank sums .* nearest valid: strategy=single trainer.devices=1"),
        ("strategy=fsdp", "strategy=fsdp on 1 rank sums .* nearest valid: strategy=single trainer.devices=1"),
        ("trainer.devices=2", "strategy=auto on 2 ranks sums .* nearest valid: strategy=single trainer.devices=1"),
        ("precision=fp16_mixed", "precision=fp16_mixed scales .* nearest valid: one of precision=auto, bf16_mixed, .*"),
        ("precision=fp8", "precision=fp8 has not been tried .* nearest valid: one of precision=auto, bf16_mixed, .*"),
        ("recompute=selective", "recompute=selective .*random.* nearest valid: recompute=none"),
        ("trainer.detect_anomaly=true", "nearest valid: trainer.detect_anomaly=false"),
    ],
)
def test_what_a_recorded_step_cannot_do_is_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^compile\.cuda_graphs=true: .*{message}\.$") as refused:
        asked(ON, word)
    assert "\n" not in str(refused.value)


def test_a_cpu_has_no_graphs() -> None:
    with pytest.raises(ConfigurationError, match=r"a cpu device has none; nearest valid: compile\.cuda_graphs=false"):
        asked(ON, "trainer.accelerator=cpu")


def test_it_is_refused_before_data_is_prepared(tiny_job: Callable[..., Job]) -> None:
    with pytest.raises(ConfigurationError, match="a cpu device has none"):
        build_on_meta(tiny_job(ON), is_alone=False)
