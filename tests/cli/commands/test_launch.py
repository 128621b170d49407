import json
import os
from pathlib import Path

import pytest
import yaml

from lmtrain.cli.commands.launch import launch
from lmtrain.errors import ConfigurationError
from tests.interop.hugging_face import imported, saved

FLEET = [
    "cluster=h100_8x",
    "compile=blocks",
    "cluster.num_nodes=2",
    "strategy=fsdp",
    "batch.tokens_per_step=12288",
    "run.name=a",
]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with an sbatch before all others, that keeps what it was given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sbatch").write_text('#!/bin/bash\ncp "$2" submitted\necho 12\n')
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_what_is_shown_is_what_is_submitted_and_showing_writes_nothing(
    queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*FLEET, "--time=24:00:00", "source=files", "source.paths=['my notes']"]
    (queue / "my notes").mkdir()
    before = {*queue.iterdir()}
    assert launch(["slurm", *words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert {*queue.iterdir()} == before
    assert "--nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n#SBATCH --time=1-00:00:00\n" in shown
    assert launch(["slurm", *words]) == 0
    assert (queue / "submitted").read_text() == shown
    assert "job 12: runs/.launch/a.sbatch, its output runs/.launch/a-12.log" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cluster=h100_8x"], r"one of slurm, torchrun, k8s, sky"),
        (["slurm", *FLEET, "--time=soon"], r"--time=soon"),
        (["torchrun", *FLEET], r"--address=HOST"),
        (["torchrun", *FLEET, "--address=n0", "--node-rank=2"], r"--node-rank.*0 to 1, got 2"),
        (["torchrun", *FLEET, "--address=n0"], r"--node-rank.*0 to 1"),
        (["k8s", *FLEET, "--image=x"], r"--claim=NAME"),
        (["sky", "cluster.num_nodes=2"], r"cluster=local does not say whether the nodes have GPUs"),
        (["sky", *FLEET, "trainer.num_nodes=3"], r"cluster\.num_nodes=2.*cluster\.num_nodes=3"),
        (["sky", *FLEET, "-m", "seed=1,2"], r"starts one run"),
        (["sky", *FLEET, "logger.tracking_uri=https://me:hunter2secret@host"], r"secret.*oc\.env:NAME"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_written(queue: Path, words: list[str], message: str) -> None:
    before = {*queue.iterdir()}
    with pytest.raises(ConfigurationError, match=message):
        launch(words)
    assert {*queue.iterdir()} == before


def test_weights_of_another_model_are_refused_before_the_queue(queue: Path) -> None:
    saved("llama", queue / "hf")
    imported(queue / "hf", queue / "base")
    with pytest.raises(ConfigurationError, match=r"init_from=base is another model"):
        launch(["slurm", "cluster=cpu", "init_from=base", "model=llama_tiny", "run.name=a", "--dry-run"])


def test_kubernetes_and_sky_get_yaml_of_the_config_s_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster=mi300x_8x", "cluster.num_nodes=3", "strategy=fsdp", "batch.tokens_per_step=12288"]
    assert launch(["k8s", *words, "--image=me/lmtrain", "--claim=disk"]) == 0
    _, work = yaml.safe_load_all(capsys.readouterr().out)
    assert work["spec"]["completions"] == 3
    assert launch(["sky", *words, "--json"]) == 0
    task = json.loads(capsys.readouterr().out)
    assert (task["num_nodes"], task["resources"]) == (3, {"accelerators": "MI300X:8"})
    (container,) = work["spec"]["template"]["spec"]["containers"]
    assert task["run"].rstrip().endswith(container["command"][-1]), "both name the run, and alike"
