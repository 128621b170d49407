import pytest

from lmtrain.accounting.hardware import Cluster, find_device
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("name", "bf16_tera", "fp32_tera", "fp8_tera", "memory_gb"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 66.9, 1978.9, 80),
        ("NVIDIA H100 PCIe", 756, 51, 1513, 80),
        ("NVIDIA H100 NVL", 835, 60, 1670, 94),
        ("NVIDIA H200", 989.4, 66.9, 1978.9, 141),
        ("NVIDIA A100-SXM4-80GB", 312, 19.5, None, 80),
        ("NVIDIA B200", 2250, 75, 4500, 180),
        ("NVIDIA L4", 121, None, None, 24),
        ("NVIDIA L40S", 362, None, None, 48),
        ("NVIDIA GeForce RTX 4090", 165.2, None, None, 24),
    ],
)
def test_table_has_the_dense_peaks(name, bf16_tera, fp32_tera, fp8_tera, memory_gb):
    device = find_device(name)
    assert device is not None
    assert device.peak_flops("bf16") == device.peak_flops("fp16") == pytest.approx(bf16_tera * 1e12)
    assert device.peak_flops("fp32") == (None if fp32_tera is None else pytest.approx(fp32_tera * 1e12))
    assert device.peak_flops("fp8") == (None if fp8_tera is None else pytest.approx(fp8_tera * 1e12))
    assert device.memory_bytes == memory_gb * 10**9


@pytest.mark.parametrize("name", ["NVIDIA L40", "NVIDIA H100", "L4", "nvidia l4", "NVIDIA H200 NVL", ""])
def test_a_name_that_only_resembles_one_is_unknown(name):
    assert find_device(name) is None


def test_unknown_detected_device_has_no_peak():
    assert Cluster(name="local").peak("bf16", detected_device="NVIDIA L40") is None
    assert Cluster(name="local").peak("bf16") is None


def test_detected_device_is_used_when_none_is_configured():
    peak = Cluster(name="local").peak("bf16", detected_device="NVIDIA H200")
    assert peak is not None
    assert peak.flops == pytest.approx(989.4e12)
    assert peak.source == "NVIDIA H200 bf16 dense"


def test_configured_peak_wins_and_says_so():
    cluster = Cluster(name="local", device="NVIDIA H200", peak_flops=1e12)
    peak = cluster.peak("bf16", detected_device="NVIDIA L4")
    assert peak is not None
    assert (peak.flops, peak.source) == (1e12, "cluster.peak_flops")


def test_dtype_that_a_device_lacks_has_no_peak():
    assert Cluster(name="a", device="NVIDIA A100-SXM4-80GB").peak("fp8") is None


def test_misspelt_device_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigurationError, match=r"cluster\.device=NVIDIA H20 .*Did you mean 'NVIDIA H200'\?"):
        Cluster(name="x", device="NVIDIA H20")


@pytest.mark.parametrize(
    ("setting", "value"), [("num_nodes", 0), ("devices_per_node", -1), ("peak_flops", 0.0), ("usd_per_gpu_hour", -1.0)]
)
def test_impossible_cluster_is_refused_by_key(setting, value):
    with pytest.raises(ConfigurationError, match=rf"cluster\.{setting}={value}"):
        Cluster(name="x", **{setting: value})
