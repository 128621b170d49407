"""What of a run depends on its device."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.attention.auto import Auto, Uncompiled
from lmtrain.models.attention.base import Attention
from lmtrain.models.attention.eager import Eager
from lmtrain.run.builders.device import (
    build_precision,
    device_type,
    fit_attention,
    fit_loss,
    graphs_of,
    require_no_unused_gpu,
    tell_of_precision,
)
from lmtrain.run.execution.build import build_run
from lmtrain.run.execution.meta_build import build_on_meta
from lmtrain.run.schema.node import Node
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.events import EventLog
from lmtrain.training.micro_step_graph import Graph
from tests.configs import config_of, config_with
from tests.optim.models import tiny_model

MakeJob = Callable[..., Job]


def test_the_kernel_that_runs_is_said_once_and_noted(tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        run = build_run(tiny_job(), rank=rank, log=None)
        run.context.events.flush()
        events = [
            json.loads(line) for line in (run.context.folder / f"events/rank{rank}.jsonl").read_text().splitlines()
        ]
        assert [event["kernel"] for event in events if event["name"] == "attention"] == [
            "auto: sdpa (flash), windows up to 1/4 of the context in blocked, on cpu"
        ]
    assert capsys.readouterr().out.count("attention=auto: sdpa (flash), windows") == 1


@pytest.mark.parametrize(
    ("option", "missing", "kernel"),
    [("none", None, Uncompiled), ("blocks", "c++", Auto), ("auto", None, Auto), ("auto", "no c++", Uncompiled)],
)
def test_auto_knows_whether_it_will_be_compiled(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, option: str, missing: str | None, kernel: type[Attention]
) -> None:
    monkeypatch.setattr("lmtrain.run.builders.device.missing_compiler", lambda: missing)
    fitted = fit_attention(tiny_job(f"compile={option}").config, compute_dtype=torch.float32)
    assert isinstance(fitted.kernel, kernel)


@pytest.mark.parametrize(
    ("words", "missing", "told"),
    [
        (["compile=auto"], None, "compile=auto: the whole model in one graph: 2 blocks, of 8 at most\n"),
        (["compile=auto", "model.num_layers=9"], None, "compile=auto: block by block: 9 blocks, above 8\n"),
        (["compile=auto"], "no c++", ""),
        (["compile=blocks"], None, ""),
    ],
)
def test_a_choice_of_compilation_is_told_with_its_reason(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys, words: list[str], missing: str | None, told: str
) -> None:
    monkeypatch.setattr("lmtrain.run.builders.device.missing_compiler", lambda: missing)
    build_run(tiny_job(*words), rank=0, log=None)
    lines = [line for line in capsys.readouterr().out.splitlines(keepends=True) if line.startswith("compile=")]
    assert "".join(lines) == told


def test_the_model_gets_the_fitted_kernel(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Eager()
    monkeypatch.setattr(Auto, "fitted", lambda self, place: chosen)
    run = build_run(tiny_job(), rank=0, log=None)
    assert run.module.language_model.attention is chosen


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["attention=flash"], ConfigurationError, "attention=flash needs an NVIDIA GPU, and this is cpu"),
        (["attention=flex"], ConfigurationError, "attention=flex has no backward pass on cpu"),
        (["loss=liger"], ConfigurationError, "loss=liger needs an NVIDIA GPU, and this is cpu"),
        (["loss=linear", "+model.logit_soft_cap=15"], ConfigurationError, "loss=linear has no soft cap"),
    ],
)
def test_what_cannot_run_here_is_one_line_before_anything_is_allocated(
    tiny_job: MakeJob, overrides: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refusal:
        build_run(tiny_job(*overrides), rank=0, log=None)
    assert "\n" not in str(refusal.value)


def test_a_missing_package_is_told_where_there_is_a_gpu(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtrain.run.builders.device.device_type", lambda accelerator: "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    for name in ("flash_attn", "flash_attn_interface", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, None)
    job = tiny_job("attention=flash", "+model.head_width=8")
    with pytest.raises(EnvironmentProblem, match="attention=flash needs the package"):
        fit_attention(job.config, compute_dtype=torch.bfloat16)
    with pytest.raises(ConfigurationError, match="not float32"):
        fit_attention(job.config, compute_dtype=torch.float32)


def test_the_loss_of_the_config_is_built(tiny_job: MakeJob) -> None:
    job = tiny_job("loss=chunked", "loss.chunk_tokens=7", "loss.z_loss_weight=0.5")
    model = build_run(job, rank=0, log=None).module.language_model
    assert fit_loss(job.config, model) == ChunkedCrossEntropy(chunk_tokens=7, z_loss_weight=0.5)


def test_a_model_without_attention_takes_no_kernel() -> None:
    assert (
        fit_attention(config_with(model=Node("model", {"_target_": "x"})), compute_dtype=torch.float32).kernel is None
    )


@pytest.mark.parametrize(("accelerator", "found", "expected"), [("cpu", "cuda", "cpu"), ("auto", "cuda", "cuda")])
def test_the_device_is_the_one_that_the_trainer_takes(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, found: str, expected: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(found))
    assert device_type(accelerator) == expected
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert device_type(accelerator) == "cpu"


def test_options_are_files_of_their_own() -> None:
    conf = Path(__file__).parents[2] / "conf"
    assert {path.stem for path in (conf / "attention").glob("*.yaml")} >= {"auto", "sdpa", "flash", "flex", "eager"}
    assert {path.stem for path in (conf / "loss").glob("*.yaml")} >= {"cross_entropy", "chunked", "linear", "liger"}


def machine(folder: Path, *, with_gpu: bool = True) -> dict[str, Path]:
    """Return the paths of a machine with the driver's module, and perhaps a device."""
    for name in ("nvidiactl", "nvidia-uvm", *["nvidia0"] * with_gpu):
        (folder / name).touch()
    version = folder / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\n")
    return {"devices": folder, "driver": version}


@pytest.mark.parametrize(
    ("cuda", "cause"),
    [
        ("13.0", "torch is built for CUDA 13.0, and the driver is 470.57.02: update it"),
        (None, "this torch is built without CUDA: install one with it"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_refused_with_the_cause_and_the_word_for_the_cpu(
    tmp_path: Path, cuda: str | None, cause: str
) -> None:
    with pytest.raises(EnvironmentProblem, match=r"nvidia0 is an NVIDIA GPU .* trainer\.accelerator=cpu\.") as refused:
        require_no_unused_gpu({}, **machine(tmp_path), cuda=cuda)
    assert cause in str(refused.value)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_its_owner_hides_is_none(tmp_path: Path, hidden: str) -> None:
    require_no_unused_gpu({"CUDA_VISIBLE_DEVICES": hidden}, **machine(tmp_path), cuda="13.0")


def test_a_driver_without_a_device_is_no_gpu(tmp_path: Path) -> None:
    require_no_unused_gpu({}, **machine(tmp_path, with_gpu=False), cuda="13.0")


def precision(*words):
    return build_precision(config_of(*words, "trainer.accelerator=cpu"))


@pytest.mark.parametrize("name", ["fp32", "fp16_mixed", "bf16_mixed", "bf16_true"])
def test_what_a_cpu_can_do_is_built(name):
    assert precision(f"precision={name}").name == name


@pytest.mark.parametrize("name", ["tf32", "fp8"])
def test_what_it_cannot_is_refused_although_it_can_be_planned(name):
    with pytest.raises(ConfigurationError, match=f"precision={name} needs a GPU"):
        precision(f"precision={name}")


@pytest.mark.parametrize(
    ("peak_flops", "said"), [(989.4e12, "; peak 989.4 TFLOP/s a device (H100)"), (None, "; peak not known (H100)")]
)
def test_a_run_states_bytes_and_the_peak_that_utilization_divides_by(peak_flops, said, tmp_path, capsys):
    plan, events = SimpleNamespace(peak_flops=peak_flops, peak_source="H100"), EventLog(tmp_path, 0)
    for is_main_process in (True, False):
        context: Any = SimpleNamespace(plan=plan, events=events, is_main_process=is_main_process)
        tell_of_precision(precision("precision=bf16_mixed"), tiny_model(), context, strategy_casts=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"bytes a parameter: 4 weights + 4 gradients + 4 a moment{said}")


ON = "compile.cuda_graphs=true"


def asked(*words: str) -> Any:
    return graphs_of(config_of(*words))


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtrain.run.builders.device.device_type", lambda accelerator: "cuda")


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("option", ["auto", "model", "blocks", "none"])
def test_every_way_to_compile_can_be_recorded_on_a_gpu_and_is_not_unless_asked(option: str) -> None:
    assert asked(f"compile={option}", ON) is Graph
    assert asked(f"compile={option}") is None


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16_mixed", "bf16_true"])
def test_precisions_without_a_scaled_loss_are_recorded(precision: str) -> None:
    assert asked(ON, f"precision={precision}") is Graph


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("strategy=ddp", "strategy=ddp on 1 rank sums .* nearest valid: strategy=single trainer.devices=1"),
        ("strategy=fsdp", "strategy=fsdp on 1 rank sums .* nearest valid: strategy=single trainer.devices=1"),
        ("trainer.devices=2", "strategy=auto on 2 ranks sums .* nearest valid: strategy=single trainer.devices=1"),
        ("precision=fp16_mixed", "precision=fp16_mixed .* nearest valid: one of precision=auto, bf16_mixed, .*"),
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
