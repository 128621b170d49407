"""Links between a device and the memory of its host, in bytes per second of one direction, from the data sheets.

PCIe 4.0 and 5.0 with 16 lanes; of Grace Hopper and Grace Blackwell, NVLink-C2C.
"""

from typing import Final

PCIE_4: Final = 32e9
PCIE_5: Final = 64e9
NVLINK_C2C: Final = 450e9
_BY_LINK: Final[dict[float, tuple[str, ...]]] = {
    PCIE_4: (
        *("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"),
        *("NVIDIA A800-SXM4-80GB", "NVIDIA A10", "NVIDIA A40", "NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation"),
        *("NVIDIA L4", "NVIDIA L40S", "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090"),
    ),
    PCIE_5: (
        *("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA H200 NVL"),
        *("NVIDIA H20", "NVIDIA B200", "AMD Instinct MI300X", "AMD Instinct MI325X", "NVIDIA GeForce RTX 5090"),
    ),
    NVLINK_C2C: ("NVIDIA GH200 480GB", "NVIDIA GB200"),
}
HOST_LINKS: Final = {name: rate for rate, names in _BY_LINK.items() for name in names}  # others are not known to us
