import pytest

from lmtrain.accounting.cluster import Cluster
from lmtrain.errors import ConfigurationError


def test_configured_peak_wins_and_says_so():
    cluster = Cluster(name="local", device="NVIDIA H200", peak_flops=1e12)
    peak = cluster.peak("bf16", detected_device="NVIDIA L4")
    assert peak is not None
    assert (peak.flops, peak.source) == (1e12, "cluster.peak_flops")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("num_nodes", 0),
        ("devices_per_node", -1),
        ("peak_flops", 0.0),
        ("usd_per_gpu_hour", -1.0),
        ("mfu", 1.2),
        ("mfu", 0.0),
        ("network_bytes_per_second", 0),
        ("device_hours_per_failure", float("inf")),
    ],
)
def test_impossible_cluster_is_refused_by_key(setting, value):
    with pytest.raises(ConfigurationError, match=rf"cluster\.{setting}={value}"):
        Cluster(name="x", **{setting: value})
