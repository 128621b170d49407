import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmtrain.errors import ConfigurationError
from lmtrain.launch.kubernetes import objects
from lmtrain.launch.nodes import NodesJob
from lmtrain.launch.yaml_text import to_yaml
from tests.launch import clients

WORDS = ["source.paths=[my notes]", "a=$(HOME)", "b=${oc.env:HOME}", "c=$$(HOME)", 'd=it\'s "x": {#1}', "e=\n- f"]


def made(device: str | None = "NVIDIA H200", name: str = "my_run") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the service and the Job as `kubectl` reads them."""
    job = NodesJob(name=name, words=WORDS, num_nodes=4, ranks_per_node=8, device=device)
    service, work = yaml.safe_load_all(to_yaml(*objects(job, image="me/lmtrain:1", claim="disk")))
    return service, work


def expanded(word: str, values: dict[str, str]) -> str:
    """Expand a word as Kubernetes does (third_party/forked/golang/expansion): $$ is $, $(NAME) a known value."""
    return re.sub(
        r"\$(\$|\((\w+)\))?",
        lambda found: "$" if found[1] == "$" else values.get(found[2] or "", found[0]),
        word,
    )


def test_a_pod_is_a_node_and_finds_the_first_one_by_the_service() -> None:
    service, work = made()
    pod = work["spec"]["template"]["spec"]
    assert (work["spec"]["completions"], work["spec"]["parallelism"]) == (4, 4)
    assert work["spec"]["completionMode"] == "Indexed"
    assert work["spec"]["backoffLimit"] == 4 * 10, "one pod that fails takes the others along, and each counts"
    assert service["spec"]["clusterIP"] == "None", "a headless service: Kubernetes' own word, no null"
    assert service["spec"]["selector"] == {"job-name": work["metadata"]["name"]}
    assert service["metadata"]["name"] == pod["subdomain"] == "my-run"
    command = [expanded(word, {"JOB_COMPLETION_INDEX": "3"}) for word in pod["containers"][0]["command"]]
    assert {"--node-rank=3", "--master-addr=my-run-0.my-run", "--nnodes=4", "--nproc-per-node=8"} <= {*command}


def test_every_word_reaches_the_run_as_it_was_typed() -> None:
    command = made()[1]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [expanded(word, {"HOME": "/root"}) for word in command][-len(WORDS) :] == WORDS


@pytest.mark.parametrize(
    ("device", "limits"),
    [("NVIDIA H200", {"nvidia.com/gpu": "8"}), ("AMD Instinct MI300X", {"amd.com/gpu": "8"}), (None, None)],
)
def test_a_pod_asks_for_its_vendor_s_gpus(device: str | None, limits: dict[str, str] | None) -> None:
    container = made(device)[1]["spec"]["template"]["spec"]["containers"][0]
    assert container.get("resources", {}).get("limits") == limits


@pytest.mark.parametrize("device", ["", "Other 9000"])
def test_gpus_of_an_unknown_vendor_are_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match="NVIDIA or AMD"):
        made(device)


@clients.needed
def test_kubernetes_own_schema_takes_the_objects_and_no_key_beside_it(tmp_path: Path) -> None:
    service, work = made()
    right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
    right.write_text(to_yaml(service, work))
    wrong.write_text(to_yaml({**work, "spec": {**work["spec"], "completionMood": "Indexed"}}))
    for file, told in ((right, ""), (wrong, "'completionMood' was unexpected")):
        command = [clients.BIN / "kubernetes-validate", "--strict", "--quiet", file]
        read = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (read.returncode == 0) == (file is right)
        assert told in read.stdout + read.stderr
