"""The commands and files of `lmtrain launch`: every word arrives as typed, with the config's nodes and devices."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmtrain.accounting.machine.hardware import DEVICES
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.launch.nodes import SKY_ACCELERATORS, NodesJob, kubernetes_manifest, sky_task
from lmtrain.launch.sbatch import (
    BatchLimits,
    batch_script,
    require_sbatch,
    submit,
)

# Readers of this YAML that are not in the lock; `make clients` puts them beside the environment.
CLIENTS = Path(__file__).parents[2] / ".cache/clients/bin"
needs_clients = pytest.mark.skipif(not CLIENTS.is_dir(), reason="make clients brings the readers of this YAML")
WORDS = [
    *("a='b c'", 'source.paths=[my notes,"x\'y"]', "d=${oc.env:HOME} $SKYPILOT_NODE_RANK", "c=$$(HOME) $(date)"),
    *('e="x": {#1}', "f=`date` !1 *", "g=\n- \u00e9\n  \nlast\\ "),
]
READS_SKY = """
import json, sys, sky
print(json.dumps(sky.Task.from_yaml(sys.argv[1]).to_yaml_config()))
sky.Task.from_yaml(sys.argv[2])
"""


def job(device: str | None = "NVIDIA H200", name: str = "my_run") -> NodesJob:
    return NodesJob(name=name, words=WORDS, num_nodes=4, ranks_per_node=8, device=device)


def program(folder: Path, name: str, *lines: str) -> None:
    (folder / name).write_text("\n".join(["#!/bin/bash", *lines, ""]))
    (folder / name).chmod(0o755)


class TestKubernetes:
    def made(self, device: str | None = "NVIDIA H200") -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the service and the Job as `kubectl` reads them."""
        service, work = yaml.safe_load_all(kubernetes_manifest(job(device), image="me/lmtrain:1", claim="disk"))
        return service, work

    def expanded(self, word: str) -> str:
        """Expand a word as Kubernetes does (third_party/forked/golang/expansion): $$ is $, $(NAME) a known value."""
        values = {"JOB_COMPLETION_INDEX": "3", "HOME": "/root"}
        replace: Any = lambda found: "$" if found[1] == "$" else values.get(found[2] or "", found[0])  # noqa: E731
        return re.sub(r"\$(\$|\((\w+)\))?", replace, word)

    def test_a_pod_is_a_node_and_every_word_arrives_as_typed(self) -> None:
        service, work = self.made()
        pod = work["spec"]["template"]["spec"]
        assert (work["spec"]["completions"], work["spec"]["parallelism"]) == (4, 4)
        assert work["spec"]["backoffLimit"] == 4 * 10, "a failing pod takes the others along, and each counts"
        assert service["spec"]["clusterIP"] == "None", "a headless service: the word, not null"
        assert service["spec"]["selector"] == {"job-name": work["metadata"]["name"]}
        assert service["metadata"]["name"] == pod["subdomain"] == "my-run"
        command = [self.expanded(word) for word in pod["containers"][0]["command"]]
        assert {"--node-rank=3", "--master-addr=my-run-0.my-run", "--nnodes=4", "--nproc-per-node=8"} <= {*command}
        assert command[-len(WORDS) :] == WORDS

    @pytest.mark.parametrize(
        ("device", "limits"),
        [("NVIDIA H200", {"nvidia.com/gpu": "8"}), ("AMD Instinct MI300X", {"amd.com/gpu": "8"}), (None, None)],
    )
    def test_a_pod_asks_for_its_vendors_gpus(self, device: str | None, limits: dict[str, str] | None) -> None:
        container = self.made(device)[1]["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"].get("limits") == limits

    def test_pods_start_together_with_the_cores_and_cards_asked_for(self) -> None:
        asked = {"cpu": "96", "rdma/ib": "8"}
        text = kubernetes_manifest(job(), image="i", claim="c", queue="gpus", resources=asked)
        _, work = yaml.safe_load_all(text)
        assert work["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpus"}
        (container,) = work["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", **asked}
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}

    @pytest.mark.external
    @needs_clients
    def test_kubernetes_own_schema_accepts_the_objects(self, tmp_path: Path) -> None:
        right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
        right.write_text(kubernetes_manifest(job(), image="me/lmtrain:1", claim="disk"))
        wrong.write_text(right.read_text().replace("completionMode:", "completionMood:"))
        for file in (right, wrong):
            command = [CLIENTS / "kubernetes-validate", "--strict", "--quiet", file]
            assert (subprocess.run(command, capture_output=True, check=False).returncode == 0) == (file is right)


class TestSkyPilot:
    def test_a_nodes_shell_gives_every_word_as_typed(self, tmp_path: Path) -> None:
        task = yaml.safe_load(sky_task(job()))
        assert (task["name"], task["num_nodes"], task["resources"]) == ("my-run", 4, {"accelerators": "H200:8"})
        assert "resources" not in yaml.safe_load(sky_task(job(None)))
        (tmp_path / ".venv/bin").mkdir(parents=True)
        program(tmp_path, ".venv/bin/python", 'printf "%s\\0" "$@" > words')
        environment = {**os.environ, "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
        subprocess.run(["bash", "-c", task["run"]], cwd=tmp_path, env=environment, check=True)
        words = (tmp_path / "words").read_text().split("\0")
        assert words[-len(WORDS) - 1 :] == [*WORDS, ""]
        assert {"--nnodes=4", "--nproc-per-node=8", "--node-rank=1", "--master-addr=10.0.0.1"} <= {*words}

    @pytest.mark.external
    @needs_clients
    @pytest.mark.slow
    def test_skypilots_own_reader_accepts_the_task(self, tmp_path: Path) -> None:
        files = [tmp_path / "task.yaml", tmp_path / "wrong.yaml"]
        files[0].write_text(sky_task(job()))
        files[1].write_text(sky_task(job()).replace("num_nodes:", "numnodes:"))
        environment = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
        command = [str(CLIENTS / "python"), "-c", READS_SKY, *map(str, files)]
        read = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert json.loads(read.stdout)["resources"] == {"accelerators": {"H200": 8}}
        assert "Instead of 'numnodes', did you mean 'num_nodes'?" in read.stderr


@pytest.mark.parametrize("device", ["", "Other 9000"])
def test_an_unknown_device_is_refused(device: str) -> None:
    assert {*SKY_ACCELERATORS} <= {*DEVICES}
    with pytest.raises(ConfigurationError, match=r"cluster\.device.*NVIDIA or AMD"):
        kubernetes_manifest(job(device), image="i", claim="c")
    with pytest.raises(ConfigurationError, match=r"cluster\.device.*SkyPilot"):
        sky_task(job(device))


class TestSbatch:
    def script(self, nodes: NodesJob | None = None, *, python: str = "python", **limits: Any) -> str:
        return batch_script(nodes or job(), BatchLimits(**limits), python=python, log=Path("runs/a b/%j.log"))

    @pytest.mark.parametrize(("code", "asked"), [(0, []), (143, []), (85, ["requeue 7"]), (4, ["--signal=KILL 7.0"])])
    def test_a_rank_gets_every_word_as_typed_and_its_end_is_the_jobs(
        self, tmp_path: Path, code: int, asked: list[str]
    ) -> None:
        folder = tmp_path / "my env"
        folder.mkdir()
        program(folder, "python", f'printf "%s\\0" "$@" > "{folder}/words"', f"exit {code}")
        program(folder, "srun", "export SLURM_STEP_ID=0", '"$@"')
        program(folder, "sleep")
        for name in ("scontrol", "scancel"):
            program(folder, name, f'echo "$@" >> "{folder}/asked"')
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        script = self.script(python=f"{folder}/python")
        assert subprocess.run(["bash", "-c", script], env=environment, check=False).returncode == code
        assert (folder / "words").read_text().split("\0") == ["-P", "-m", "lmtrain.cli", "train", *WORDS, ""]
        assert ((folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []) == asked

    def test_a_limit_without_time_to_save_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"--time.*360s"):
            BatchLimits(time_seconds=300)

    def test_a_machine_without_a_queue_and_a_refusing_queue_are_environment_problems(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(EnvironmentProblem, match=r"sbatch.*--dry-run"):
            require_sbatch()
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        program(tmp_path, "sbatch", "echo 'invalid partition: x' >&2", "exit 1")
        with pytest.raises(EnvironmentProblem, match="status 1: invalid partition: x"):
            submit(tmp_path / "a.sbatch")
        program(tmp_path, "sbatch", "echo '12;cluster'")
        assert submit(tmp_path / "a.sbatch") == "12"
