import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmtrain.accounting.machine.hardware import DEVICES
from lmtrain.errors import ConfigurationError
from lmtrain.launch.nodes import NodesJob
from lmtrain.launch.sky import ACCELERATORS, refuse_flags_of_sky, task
from lmtrain.launch.yaml_text import to_yaml
from tests.launch import clients

READS = """
import json, sys, sky
print(json.dumps(sky.Task.from_yaml(sys.argv[1]).to_yaml_config()))
sky.Task.from_yaml(sys.argv[2])
"""
WORDS = ["a='b c'", 'source.paths=[my notes,"x\'y"]', "d=${oc.env:HOME} $SKYPILOT_NODE_RANK", "f=\nlast\\ "]


def made(device: str | None = "NVIDIA A100-SXM4-80GB") -> dict[str, Any]:
    job = NodesJob(name="my_run", words=WORDS, num_nodes=2, ranks_per_node=8, device=device)
    return yaml.safe_load(to_yaml(task(job)))


def test_the_task_asks_for_the_nodes_of_the_config() -> None:
    task = made()
    assert (task["name"], task["num_nodes"], task["resources"]) == ("my-run", 2, {"accelerators": "A100-80GB:8"})
    assert "resources" not in made(None)


def test_a_node_s_shell_gives_every_word_as_it_was_typed_and_the_node_s_own_place(tmp_path: Path) -> None:
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > words\n')
    python.chmod(0o755)
    environment = {**os.environ, "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    subprocess.run(["bash", "-c", made()["run"]], cwd=tmp_path, env=environment, check=True)
    words = (tmp_path / "words").read_text().split("\0")
    assert words[-len(WORDS) - 1 :] == [*WORDS, ""]
    assert {"--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--master-addr=10.0.0.1"} <= {*words}


def test_a_device_of_another_name_is_refused() -> None:
    assert {*ACCELERATORS} <= {*DEVICES}
    for device in ("", "NVIDIA H100 NVL"):
        with pytest.raises(ConfigurationError, match="none of SkyPilot's"):
            made(device)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpus H100:8", "write cluster=h100_8x."),
        ("--gpus=a100:4 seed=1", "write 'cluster.device=NVIDIA A100-SXM4-40GB' cluster.devices_per_node=4."),
        ("--gpus L4 --num-nodes 2", "write 'cluster.device=NVIDIA L4' cluster.devices_per_node=1 cluster.num_nodes=2."),
        (
            "-c mine --use-spot",
            "give -c mine --use-spot to SkyPilot: `lmtrain launch sky ... > task.yaml`, "
            "`sky launch -c mine --use-spot task.yaml`.",
        ),
    ],
)
def test_the_flags_of_sky_launch_are_answered_by_the_words_here(words: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        refuse_flags_of_sky(words.split(), clusters={"h100_8x", "a100_8x"})
    assert str(refused.value) == f"flags of `sky launch`: {said}"
    refuse_flags_of_sky(["-c", "job", "--cfg", "all", "--dry-run"], clusters=())
    with pytest.raises(ConfigurationError, match=r"^T4 is no GPU known here; nearest valid: cluster=h100_8x"):
        refuse_flags_of_sky(["--gpus=T4:1"], clusters=())


@clients.needed
@pytest.mark.slow
def test_skypilot_s_own_reader_takes_the_task_as_it_is_and_no_key_beside_its_schema(tmp_path: Path) -> None:
    task = made()
    files = [tmp_path / "task.yaml", tmp_path / "wrong.yaml"]
    for file, values in zip(files, (task, {**task, "numnodes": 2}), strict=True):
        file.write_text(to_yaml(values))
    environment = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    command = [str(clients.BIN / "python"), "-c", READS, *map(str, files)]
    read = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(read.stdout)
    assert found["resources"] == {"accelerators": {"A100-80GB": 8}}
    assert {key: found[key] for key in ("name", "num_nodes", "workdir", "setup", "run")} == {
        key: value for key, value in task.items() if key != "resources"
    }
    assert "Invalid task YAML: Instead of 'numnodes', did you mean 'num_nodes'?" in read.stderr
