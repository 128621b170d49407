"""Accelerators we know, by exact product name; any other name has no peak, never a guess.

Figures: those of each product's data sheet, of GeForce cards those of their architecture's white paper (Ampere GA102,
Ada, Blackwell) with fp32 accumulation; copied from lists of them, not held against the sheets again. Peaks are dense,
without 2:4 sparsity, as in training ("1979 TFLOP/s" for an H100 in bf16 is the sparse figure). A link's rate is of one
direction: NVLink where there is one, else PCIe; of an MI300X, Infinity Fabric's seven links of 64 GB/s to the others of
its node. AMD's compute units stand as multiprocessors, and its matrix products in fp32 as fp32.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lmtrain.errors import ConfigurationError, did_you_mean, suggest

MatmulDtype = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]
MATMUL_DTYPES: Final[tuple[MatmulDtype, ...]] = get_args(MatmulDtype)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator: dense peaks in FLOP/s by matmul dtype, memory, its bandwidth, its link to others, its power.

    A multiprocessor computes one tile of a matrix product at a time. None: not offered, or not known to us.
    """

    name: str
    half: float
    tf32: float | None
    fp32: float | None
    fp8: float | None
    memory_bytes: int
    memory_bytes_per_second: float
    link_bytes_per_second: float
    power_watts: float
    num_multiprocessors: int

    def peak_flops(self, dtype: MatmulDtype) -> float | None:
        """Return dense FLOP/s of matmuls in `dtype`, or None where the table has none."""
        return {"bf16": self.half, "fp16": self.half, "tf32": self.tf32, "fp32": self.fp32, "fp8": self.fp8}[dtype]


# Product name as torch.cuda.get_device_name reports it; TFLOP/s in half, tf32, fp32, fp8; GB; TB/s; link GB/s; watts;
# multiprocessors.
_Row = tuple[str, float, float | None, float | None, float | None, int, float, float, float, int]
_TABLE: Final[tuple[_Row, ...]] = (
    ("NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9, 1978.9, 80, 3.35, 450, 700, 132),
    ("NVIDIA H100 PCIe", 756, 378, 51, 1513, 80, 2.0, 300, 350, 114),
    ("NVIDIA H100 NVL", 835, 417, 60, 1670, 94, 3.9, 300, 400, 132),
    ("NVIDIA H200", 989.4, 494.7, 66.9, 1978.9, 141, 4.8, 450, 700, 132),
    ("NVIDIA H200 NVL", 835, 417, 60, 1671, 141, 4.8, 450, 600, 132),
    ("NVIDIA H20", 148, 74, 44, 296, 96, 4.0, 450, 400, 78),
    ("NVIDIA GH200 480GB", 989.4, 494.7, 66.9, 1978.9, 96, 4.0, 450, 1000, 132),
    ("NVIDIA A100-SXM4-40GB", 312, 156, 19.5, None, 40, 1.555, 300, 400, 108),
    ("NVIDIA A100-SXM4-80GB", 312, 156, 19.5, None, 80, 2.039, 300, 400, 108),
    ("NVIDIA A100-PCIE-40GB", 312, 156, 19.5, None, 40, 1.555, 300, 250, 108),
    ("NVIDIA A100 80GB PCIe", 312, 156, 19.5, None, 80, 1.935, 300, 300, 108),
    ("NVIDIA A800-SXM4-80GB", 312, 156, 19.5, None, 80, 2.039, 200, 400, 108),
    ("NVIDIA B200", 2250, 1125, 75, 4500, 180, 8.0, 900, 1000, 148),
    ("NVIDIA GB200", 2500, 1250, 80, 5000, 186, 8.0, 900, 1200, 148),
    ("AMD Instinct MI300X", 1307.4, 653.7, 163.4, 2614.9, 192, 5.3, 448, 750, 304),
    ("AMD Instinct MI325X", 1307.4, 653.7, 163.4, 2614.9, 256, 6.0, 448, 1000, 304),
    ("NVIDIA A10", 125, 62.5, 31.2, None, 24, 0.6, 32, 150, 72),
    ("NVIDIA A40", 149.7, 74.8, 37.4, None, 48, 0.696, 56.25, 300, 84),
    ("NVIDIA RTX A6000", 154.8, 77.4, 38.7, None, 48, 0.768, 56.25, 300, 84),
    ("NVIDIA RTX 6000 Ada Generation", 364.2, 182.1, 91.1, 728.5, 48, 0.96, 32, 300, 142),
    ("NVIDIA L4", 121, 60, 30.3, 242, 24, 0.3, 32, 72, 58),
    ("NVIDIA L40S", 362, 183, 91.6, 733, 48, 0.864, 32, 350, 142),
    ("NVIDIA GeForce RTX 3090", 71, 35.6, 35.6, None, 24, 0.936, 56.25, 350, 82),
    ("NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6, 330.3, 24, 1.008, 32, 450, 128),
    ("NVIDIA GeForce RTX 5090", 209.5, 104.8, 104.8, 419, 32, 1.792, 64, 575, 170),
)


def _device(row: _Row) -> Device:
    name, half, tf32, fp32, fp8, memory_gb, terabytes, link_gb, watts, multiprocessors = row
    tf32, fp32, fp8 = (None if peak is None else peak * 1e12 for peak in (tf32, fp32, fp8))
    return Device(
        name=name,
        half=half * 1e12,
        tf32=tf32,
        fp32=fp32,
        fp8=fp8,
        memory_bytes=memory_gb * 10**9,
        memory_bytes_per_second=terabytes * 1e12,
        link_bytes_per_second=link_gb * 1e9,
        power_watts=watts,
        num_multiprocessors=multiprocessors,
    )


DEVICES: Final[dict[str, Device]] = {row[0]: _device(row) for row in _TABLE}


def require_known(name: str, *, key: str, has_peak: bool) -> None:
    """Refuse a device outside the table, and a list of several; one with a peak of its own may be any.

    Raises: ConfigurationError with the nearest product names.
    """
    if name in DEVICES:
        return
    names = [part.strip(" []'\"") for part in name.split(",")]
    if len(names) > 1:
        raise ConfigurationError(
            f"{key}.device={name} mixes devices, and every rank waits for the slowest: plan one kind, "
            f"nearest valid: {names[0]}."
        )
    if not has_peak:
        matching = [known for known in DEVICES if name.lower() in known.lower()]
        near = did_you_mean(matching) or suggest(name, DEVICES)
        listed = "" if near else f", which has {', '.join(DEVICES)}"
        raise ConfigurationError(
            f"{key}.device={name} is not in the hardware table{listed}.{near} For another, set {key}.peak_flops to its "
            "dense peak in FLOP/s."
        )


def find_device(name: str) -> Device | None:
    """Return the device of exactly this product name, or None: an L40 is not an L4."""
    return DEVICES.get(name)


def find_devices(words: str) -> tuple[Device, ...]:
    """Return the device of this name, or those with all of these words in any case: h100 is three, l4 is no L40S.

    Raises: ConfigurationError with the nearest names where there is none.
    """
    if words in DEVICES:
        return (DEVICES[words],)
    asked = _words(words)
    if found := tuple(device for name, device in DEVICES.items() if asked and asked <= _words(name)):
        return found
    vendors = {name.partition(" ")[0].lower() for name in DEVICES}
    near = did_you_mean([name for name in DEVICES if (asked - vendors) & _words(name)]) or suggest(words, DEVICES)
    listed = "" if near else f", which has {', '.join(DEVICES)}"
    raise ConfigurationError(
        f"device={words} is not in the hardware table{listed}.{near} For another, set peak_flops to its dense peak in "
        "FLOP/s and memory_bytes_per_second, as in peak_flops=100T memory_bytes_per_second=1TB."
    )


def _words(name: str) -> set[str]:
    return set(re.split(r"[\s-]+", name.lower())) - {""}
