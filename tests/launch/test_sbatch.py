import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.launch.nodes import NodesJob
from lmtrain.launch.sbatch import BatchLimits, batch_script, read_directives, require_sbatch, submit

WORDS = ["a='b c'", 'source.paths=[my notes,"x\'y"]', "d=${oc.env:HOME}", "e=$(date) `date` !1 *", "f=\nlast\\"]
JOB = NodesJob(name="a", words=WORDS, num_nodes=2, ranks_per_node=8, device="NVIDIA H200")


def script(job: NodesJob = JOB, *, python: str = "python", **limits: Any) -> str:
    return batch_script(job, BatchLimits(**limits), python=python, log=Path("runs/a b/%j.log"))


def program(folder: Path, name: str, *lines: str) -> None:
    (folder / name).write_text("\n".join(["#!/bin/bash", *lines, ""]))
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(("code", "asked"), [(0, []), (143, []), (85, ["requeue 7"]), (4, ["--signal=KILL 7.0"])])
def test_a_rank_gets_every_word_as_typed_and_its_end_is_the_job_s(tmp_path: Path, code: int, asked: list[str]) -> None:
    folder = tmp_path / "my env"
    folder.mkdir()
    program(folder, "python", f'printf "%s\\0" "$@" > "{folder}/words"', f"exit {code}")
    program(folder, "srun", "export SLURM_STEP_ID=0", '"$@"')
    program(folder, "sleep")
    for name in ("scontrol", "scancel"):
        program(folder, name, f'echo "$@" >> "{folder}/asked"')
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    ended = subprocess.run(["bash", "-c", script(python=f"{folder}/python")], env=environment, check=False)
    assert ended.returncode == code
    assert (folder / "words").read_text().split("\0") == ["-P", "-m", "lmtrain.cli", "train", *WORDS, ""]
    assert ((folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []) == asked


def directives(text: str) -> list[str]:
    return re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)


def test_the_directives_have_the_config_s_numbers_and_the_queue_s_limits() -> None:
    others = {"partition": "gpu", "comment": "a b", "exclusive": ""}
    text = script(time_seconds=90_061, signal_seconds=120, cpus_per_task=12, directives=others)
    assert directives(text) == [
        *("--job-name=a", "--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8", "--cpus-per-task=12"),
        *("--time=1-01:01:01", "--signal=USR1@120", "--requeue", "--open-mode=append", "--output='runs/a b/%j.log'"),
        *("--partition=gpu", "--comment='a b'", "--exclusive"),
    ]
    assert "\nsrun --cpus-per-task=12 " in text, "a step does not inherit it"


def test_nodes_without_a_gpu_ask_for_none_and_a_job_without_a_limit_takes_the_queue_s() -> None:
    plain = NodesJob(name="a", words=[], num_nodes=2, ranks_per_node=1, device=None)
    assert not {word.partition("=")[0] for word in directives(script(plain))} & {"--gpus-per-node", "--time"}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"time_seconds": 300}, "--time=300s leaves .* nearest valid: --time=360s"),
        ({"signal_seconds": 0}, "nearest valid: 1s"),
        ({"cpus_per_task": 0}, "--cpus-per-task=0 is below 1"),
        ({"directives": {"nodes": "3"}}, "--sbatch=nodes=3 .* cluster.num_nodes"),
        ({"directives": {"time": "3"}}, "--sbatch=time=3 .* --time"),
        ({"directives": {"requeue": "1"}}, "leave it out"),
        ({"directives": {"partiton": "a"}}, "sbatch has no such option; nearest valid: --sbatch=partition=a"),
        ({"directives": {"tiem": "2h"}}, "--sbatch=tiem=2h would contradict the script: set --time instead"),
        ({"directives": {"nodez": "3"}}, "--sbatch=nodez=3 .* cluster.num_nodes"),
        ({"directives": {"comment": "a\nsrun rm"}}, "no long option"),
        ({"directives": {"p": "gpu"}}, "no long option"),
    ],
)
def test_limits_that_cannot_be_are_refused_with_the_nearest(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        BatchLimits(**limits)


def test_a_directive_without_a_value_is_refused() -> None:
    assert read_directives(["a=b=c", "d=e"]) == {"a": "b=c", "d": "e"}
    assert read_directives(["exclusive"]) == {"exclusive": ""}
    with pytest.raises(ConfigurationError, match="--sbatch=account has no value"):
        read_directives(["account"])


def test_a_queue_s_refusal_is_told_and_a_machine_without_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="no sbatch here; --dry-run"):
        require_sbatch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "sbatch", "echo 'invalid partition: x' >&2", "exit 1")
    require_sbatch()
    with pytest.raises(EnvironmentProblem, match="status 1: invalid partition: x"):
        submit(tmp_path / "a.sbatch")
    program(tmp_path, "sbatch", "echo '12;cluster'")
    assert submit(tmp_path / "a.sbatch") == "12"
