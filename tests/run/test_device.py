"""What of a run depends on its device."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.builders.device import (
    require_no_unused_gpu,
)
from lmtrain.run.execution.build import build_run
from lmtrain.run.stored_runs.job import Job

MakeJob = Callable[..., Job]


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


@pytest.mark.parametrize(("hidden", "is_refused"), [("0", True), ("", False), ("-1", False)])
def test_a_gpu_that_torch_cannot_use_is_refused_unless_hidden(tmp_path: Path, hidden: str, is_refused: bool) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": hidden}
    require_no_unused_gpu(environment, devices=tmp_path)
    (tmp_path / "nvidia0").touch()
    if is_refused:
        with pytest.raises(EnvironmentProblem, match=r"nvidia0 is an NVIDIA GPU .* trainer\.accelerator=cpu\."):
            require_no_unused_gpu(environment, devices=tmp_path)
    else:
        require_no_unused_gpu(environment, devices=tmp_path)
