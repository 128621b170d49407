import pytest

from lmtrain.accounting.machine.hardware import DEVICES, find_device


@pytest.mark.parametrize(
    ("name", "bf16_tera", "fp32_tera", "fp8_tera", "memory_gb"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 66.9, 1978.9, 80),
        ("NVIDIA H200", 989.4, 66.9, 1978.9, 141),
        ("NVIDIA A100-SXM4-80GB", 312, 19.5, None, 80),
        ("NVIDIA B200", 2250, 75, 4500, 180),
        ("AMD Instinct MI300X", 1307.4, 163.4, 2614.9, 192),
        ("NVIDIA L4", 121, 30.3, 242, 24),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6, 330.3, 24),
        ("AMD Instinct MI355X", 2516.6, 157.3, 5033.2, 288),
    ],
)
def test_table_has_the_dense_peaks(name, bf16_tera, fp32_tera, fp8_tera, memory_gb):
    device = find_device(name)
    assert device is not None
    assert device.peak_flops("bf16") == device.peak_flops("fp16") == pytest.approx(bf16_tera * 1e12)
    assert device.peak_flops("fp32") == (None if fp32_tera is None else pytest.approx(fp32_tera * 1e12))
    assert device.peak_flops("fp8") == (None if fp8_tera is None else pytest.approx(fp8_tera * 1e12))
    assert device.memory_bytes == memory_gb * 10**9


def test_links_and_bandwidth_are_those_of_the_data_sheets():
    h100, h200 = DEVICES["NVIDIA H100 80GB HBM3"], DEVICES["NVIDIA H200"]
    assert (h100.memory_bytes_per_second, h100.link_bytes_per_second) == (3.35e12, 450e9)
    mi300x = DEVICES["AMD Instinct MI300X"]
    assert (mi300x.memory_bytes_per_second, mi300x.link_bytes_per_second) == (5.3e12, 448e9)
    assert (h200.memory_bytes_per_second, h200.link_bytes_per_second) == (4.8e12, 450e9)
