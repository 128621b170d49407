"""Hardware that is not here, by what its tools print."""

from functools import partial

import pytest

from lmtrain.doctor import devices
from lmtrain.doctor.devices import Gpu, driver, lacking_formats, link_kind, nvidia_smi, precision_support, same_devices
from tests import facts

H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0), 80 * 10**9)
NVLINK = """
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV18    PIX     0-51            0
GPU1    NV18     X      SYS     0-51            0
NIC0    PIX     SYS      X

Legend:
  X    = Self
"""


def test_a_driver_without_a_gpu_for_torch_is_bad_and_no_driver_is_a_cpu():
    assert driver([], None).state == "ok"
    assert driver([], "550.54.15\n").state == "bad"
    assert "2 x NVIDIA H100 80GB HBM3, driver 550.54.15" in driver([H100, H100], "550.54.15\n550.54.15\n").found


def test_mixed_and_unknown_devices_are_told():
    assert same_devices([]) == []
    assert [finding.state for finding in same_devices([H100, H100])] == ["ok"]
    other = Gpu("NVIDIA H100 80GB HBM4", (9, 0), 1)
    assert [finding.name for finding in same_devices([H100, other]) if finding.state == "warn"] == [
        "same devices",
        "known peak",
    ]


def test_precision_is_held_against_what_the_hardware_multiplies_in(monkeypatch):
    def support(*found, wanted):
        return precision_support(lacking_formats([*found]), wanted=facts.precision(wanted), fitting="precision=mine")

    assert "bf16, fp8" in support(H100, wanted="bf16_mixed").found
    v100 = Gpu("Tesla V100", (7, 0), 1)
    assert (lacking_formats([H100]), lacking_formats([v100])) == (frozenset(), {"bf16", "tf32", "fp8"})
    assert support(v100, wanted="bf16_mixed").state == "warn"
    assert support(v100, wanted="bf16_mixed").fix.endswith("use precision=mine")
    assert support(v100, wanted="fp32").state == "ok"
    monkeypatch.setattr(devices, "bf16_flags", set)
    assert [support(wanted=each).state for each in ("bf16_mixed", "fp16_mixed", "fp32")] == ["warn", "warn", "ok"]


@pytest.mark.parametrize(
    ("topology", "kind"),
    [
        (NVLINK, "NVLink (NV18)"),
        (NVLINK.replace("NV18", "PHB"), "PCIe (PHB)"),
        (NVLINK.replace("GPU0    GPU1", "\x1b[4mGPU0    GPU1\x1b[0m"), "NVLink (NV18)"),
        ("", None),
    ],
)
def test_the_slowest_link_of_all_pairs_of_gpus_counts(topology, kind):
    assert link_kind(topology) == kind


def test_links_matter_between_gpus_and_between_nodes(tmp_path):
    links = partial(devices.links, whole_copies="strategy=mine")
    assert links(1, None, num_nodes=1) == []
    assert [finding.state for finding in links(2, NVLINK, num_nodes=1)] == ["ok"]
    slow = links(2, None, num_nodes=2, infiniband=tmp_path)
    assert [finding.state for finding in slow] == ["warn", "warn"]
    assert "prefer strategy=mine, and" in slow[0].fix
    (tmp_path / "mlx5_0").mkdir()
    assert links(1, None, num_nodes=2, infiniband=tmp_path)[0].found == "InfiniBand mlx5_0"


def test_no_nvidia_smi_is_no_answer(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert nvidia_smi("-L") is None
