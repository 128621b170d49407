import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.attention.auto import Auto, Uncompiled
from lmtrain.models.attention.base import Attention
from lmtrain.models.attention.eager import Eager
from lmtrain.run.builders.kernels import device_type, fit_attention, fit_loss
from lmtrain.run.execution.build import build_run
from lmtrain.run.schema.node import Node
from lmtrain.run.stored_runs.job import Job
from tests.configs import config_with

MakeJob = Callable[..., Job]


def test_the_kernel_that_runs_is_said_once_and_noted(tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        run = build_run(tiny_job(), rank=rank, log=None)
        run.context.events.flush()
        events = [json.loads(line) for line in run.context.events.path.read_text().splitlines()]
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
    monkeypatch.setattr("lmtrain.run.builders.kernels.missing_compiler", lambda: missing)
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
    monkeypatch.setattr("lmtrain.run.builders.kernels.missing_compiler", lambda: missing)
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
    monkeypatch.setattr("lmtrain.run.builders.kernels.device_type", lambda accelerator: "cuda")
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
    conf = Path(__file__).parents[3] / "conf"
    assert {path.stem for path in (conf / "attention").glob("*.yaml")} >= {"auto", "sdpa", "flash", "flex", "eager"}
    assert {path.stem for path in (conf / "loss").glob("*.yaml")} >= {"cross_entropy", "chunked", "linear", "liger"}
