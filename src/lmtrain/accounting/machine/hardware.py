"""Accelerators we know, by exact product name; any other name has no peak, never a guess.

Figures: those of each product's document, named next to them; of GeForce and RTX PRO cards with fp32 accumulation.
Peaks are dense, without 2:4 sparsity, as in training ("1979 TFLOP/s" for an H100 in bf16 is the sparse figure). Bytes
are the documents' decimal GB: a device reports more (an H200 143,771 MiB, 150.8 GB), and a run on it goes by its
report. A link's rate is of one direction: NVLink where there is one, else PCIe; of AMD's, Infinity Fabric's links to
the others of its node. To the host it is PCIe's of 16 lanes (16, 32 or 64 GB/s, generations 3 to 5); of Grace Hopper
and Grace Blackwell, NVLink-C2C's while one GPU copies. AMD's matrix products in fp32 stand as fp32; of an MI250X one
of its two dies, the device of torch.

Looked at on 2026-11-25, in stored copies: the L40S's own document; HGX's table of B200 and B300 (fibermall.com);
NVIDIA's figures of one GPU, B200 to GB300, as Verda copied them (verda.com); a list with links to the documents
(stas00/ml-engineering, compute/accelerator) of A100, H100, H200, GH200, B200 to GB300, L40S and MI250X to MI355X. No
other document could be opened: those rows come from lists, vendors' pages and owners' reports. Sources differ on the
memory of B200 and B300: 8.0 TB/s in DGX's data sheets, 7.7 in NVIDIA's technical brief, 7.67 by a B200's driver
(as pytorch/ao found). NVLink of H20, H800 and A800 is half of both directions' 900 and 400 GB/s, as owners
found it (reports at deepseek-ai/DeepEP).
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lmtrain.errors import ConfigurationError, did_you_mean, suggest

MatmulDtype = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]
MATMUL_DTYPES: Final[tuple[MatmulDtype, ...]] = get_args(MatmulDtype)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator: dense peaks in FLOP/s by matmul dtype, memory, its bandwidth, its links.

    None: not offered, or not known to us.
    """

    name: str
    half: float
    tf32: float | None
    fp32: float | None
    fp8: float | None
    memory_bytes: int
    memory_bytes_per_second: float
    link_bytes_per_second: float
    host_bytes_per_second: float | None
    data_sheet: str = ""  # the title of the document of these figures
    has_bf16: bool = True

    def peak_flops(self, dtype: MatmulDtype) -> float | None:
        """Return dense FLOP/s of matmuls in `dtype`, or None where the table has none."""
        bf16 = self.half if self.has_bf16 else None
        return {"bf16": bf16, "fp16": self.half, "tf32": self.tf32, "fp32": self.fp32, "fp8": self.fp8}[dtype]


# Product name as torch.cuda.get_device_name reports it; TFLOP/s in half, tf32, fp32, fp8; GB; TB/s; GB/s to others and
# to the host; the document of these figures.
H100: Final = "NVIDIA H100 Tensor Core GPU data sheet"
H200: Final = "NVIDIA H200 Tensor Core GPU data sheet"
A100: Final = "NVIDIA A100 Tensor Core GPU data sheet"
HGX: Final = "NVIDIA HGX Platform data sheet, its sums over eight"
V100: Final = "NVIDIA V100 Tensor Core GPU data sheet"
GA102: Final = "NVIDIA Ampere GA102 GPU Architecture, white paper"
ADA: Final = "NVIDIA Ada GPU Architecture, white paper"
GH200: Final = "NVIDIA GH200 Grace Hopper Superchip data sheet"
BLACKWELL: Final = "NVIDIA RTX Blackwell GPU Architecture, white paper"
AMD: Final = "AMD Instinct {} accelerator data sheet"
AMD_GPU: Final = "AMD Instinct {} GPU data sheet"
RTX_ADA: Final = "NVIDIA RTX 6000 Ada Generation data sheet"
RTX_PRO_NAME: Final = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
RTX_PRO: Final = "NVIDIA RTX PRO Blackwell GPU Architecture, white paper"
NO_SHEET: Final = "no document of NVIDIA's for this export model could be opened: owners' reports and lists"
WITHOUT_BF16: Final = ("Tesla V100", "Tesla T4")  # their half is fp16 alone
_Row = tuple[str, float, float | None, float | None, float | None, int, float, float, float | None, str]
# fmt: off
_TABLE: Final[tuple[_Row, ...]] = (
    ("NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9, 1978.9, 80, 3.35, 450, 64, H100),
    ("NVIDIA H100 PCIe", 756, 378, 51, 1513, 80, 2.0, 300, 64, H100),
    ("NVIDIA H100 NVL", 835, 417, 60, 1670, 94, 3.9, 300, 64, H100),
    ("NVIDIA H200", 989.4, 494.7, 66.9, 1978.9, 141, 4.8, 450, 64, H200),
    ("NVIDIA H200 NVL", 835, 417, 60, 1671, 141, 4.8, 450, 64, H200),
    ("NVIDIA H20", 148, 74, 44, 296, 96, 4.0, 450, 64, NO_SHEET),
    ("NVIDIA H800", 989.4, 494.7, 66.9, 1978.9, 80, 3.35, 200, 64, NO_SHEET),
    ("NVIDIA H800 PCIe", 756, 378, 51, 1513, 80, 2.0, 200, 64, NO_SHEET),
    ("NVIDIA GH200 480GB", 989.4, 494.7, 66.9, 1978.9, 96, 4.0, 450, 450, GH200),
    ("NVIDIA A100-SXM4-40GB", 312, 156, 19.5, None, 40, 1.555, 300, 32, A100),
    ("NVIDIA A100-SXM4-80GB", 312, 156, 19.5, None, 80, 2.039, 300, 32, A100),
    ("NVIDIA A100-PCIE-40GB", 312, 156, 19.5, None, 40, 1.555, 300, 32, A100),
    ("NVIDIA A100 80GB PCIe", 312, 156, 19.5, None, 80, 1.935, 300, 32, A100),
    ("NVIDIA A800-SXM4-80GB", 312, 156, 19.5, None, 80, 2.039, 200, 32, NO_SHEET),
    ("NVIDIA B200", 2250, 1125, 75, 4500, 180, 8.0, 900, 64, HGX),
    ("NVIDIA B300 SXM6 AC", 2250, 1125, 75, 4500, 270, 8.0, 900, None, HGX),
    ("NVIDIA GB200", 2500, 1250, 80, 5000, 186, 8.0, 900, 450, "NVIDIA GB200 NVL72 data sheet"),
    ("NVIDIA GB300", 2500, 1250, 80, 5000, 279, 8.0, 900, 450, "NVIDIA GB300 NVL72 data sheet"),
    ("AMD Instinct MI300X", 1307.4, 653.7, 163.4, 2614.9, 192, 5.3, 448, 64, AMD.format("MI300X")),
    ("AMD Instinct MI325X", 1307.4, 653.7, 163.4, 2614.9, 256, 6.0, 448, 64, AMD.format("MI325X")),
    ("AMD Instinct MI350X", 2306.9, None, 144.2, 4613.7, 288, 8.0, 537.6, 64, AMD_GPU.format("MI350X")),
    ("AMD Instinct MI355X", 2516.6, None, 157.3, 5033.2, 288, 8.0, 537.6, 64, AMD_GPU.format("MI355X")),
    ("AMD Instinct MI250X", 191.5, None, 47.9, None, 64, 1.6, 200, None, AMD.format("MI250X")),
    ("NVIDIA A10", 125, 62.5, 31.2, None, 24, 0.6, 32, 32, "NVIDIA A10 Tensor Core GPU data sheet"),
    ("NVIDIA A40", 149.7, 74.8, 37.4, None, 48, 0.696, 56.25, 32, "NVIDIA A40 data sheet"),
    ("NVIDIA RTX A6000", 154.8, 77.4, 38.7, None, 48, 0.768, 56.25, 32, "NVIDIA RTX A6000 data sheet"),
    ("NVIDIA RTX 6000 Ada Generation", 364.2, 182.1, 91.1, 728.5, 48, 0.96, 32, 32, RTX_ADA),
    (RTX_PRO_NAME, 503.8, 251.9, 126, 1007.6, 96, 1.792, 64, 64, RTX_PRO),
    ("NVIDIA L4", 121, 60, 30.3, 242, 24, 0.3, 32, 32, "NVIDIA L4 Tensor Core GPU data sheet"),
    ("NVIDIA L40S", 362, 183, 91.6, 733, 48, 0.864, 32, 32, "NVIDIA L40S GPU data sheet"),
    ("Tesla V100-SXM2-16GB", 125, None, 15.7, None, 16, 0.9, 150, 16, V100),
    ("Tesla V100-SXM2-32GB", 125, None, 15.7, None, 32, 0.9, 150, 16, V100),
    ("Tesla V100-PCIE-16GB", 112, None, 14, None, 16, 0.9, 16, 16, V100),
    ("Tesla V100-PCIE-32GB", 112, None, 14, None, 32, 0.9, 16, 16, V100),
    ("Tesla T4", 65, None, 8.1, None, 16, 0.32, 16, 16, "NVIDIA T4 Tensor Core GPU data sheet"),
    ("NVIDIA GeForce RTX 3090", 71, 35.6, 35.6, None, 24, 0.936, 56.25, 32, GA102),
    ("NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6, 330.3, 24, 1.008, 32, 32, ADA),
    ("NVIDIA GeForce RTX 5090", 209.5, 104.8, 104.8, 419, 32, 1.792, 64, 64, BLACKWELL),
)
# fmt: on


def _device(row: _Row) -> Device:
    name, half, tf32, fp32, fp8, memory_gb, terabytes, link_gb, host_gb, data_sheet = row
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
        host_bytes_per_second=None if host_gb is None else host_gb * 1e9,
        data_sheet=data_sheet,
        has_bf16=not name.startswith(WITHOUT_BF16),
    )


DEVICES: Final[dict[str, Device]] = {row[0]: _device(row) for row in _TABLE}


def require_known(name: str, *, key: str, has_peak: bool) -> None:
    """Refuse a device outside the table, and a list of several; one with its own peak may be any."""
    if name in DEVICES:
        return
    if "," in name:
        raise ConfigurationError(f"{key}.device must be one device, as every rank waits for the slowest, got {name}.")
    if not has_peak:
        raise ConfigurationError(
            f"{key}.device={name} is not in the hardware table; set {key}.peak_flops to its dense peak in FLOP/s."
            f"{_near(name)}"
        )


def find_device(name: str) -> Device | None:
    """Return the device of exactly this product name, or None: an L40 is not an L4."""
    return DEVICES.get(name)


def devices_called(words: str) -> tuple[Device, ...]:
    """Return the device of this name, or those with all of these words in any case; none where there is none."""
    if words in DEVICES:
        return (DEVICES[words],)
    asked = _words(words)
    return tuple(device for name, device in DEVICES.items() if asked and asked <= _words(name))


def find_devices(words: str) -> tuple[Device, ...]:
    """Return the device of this name, or those with all of these words in any case: h100 is three, l4 is not L40S."""
    if found := devices_called(words):
        return found
    raise ConfigurationError(f"device={words} is not in the hardware table.{_near(words)}")


def one_device(words: str) -> Device:
    """Return the one device of these words."""
    chosen, *others = find_devices(words)
    if others:
        names = ", ".join(one.name for one in (chosen, *others))
        raise ConfigurationError(f"device: must name one device of the hardware table, got {words}, which is {names}.")
    return chosen


def _near(words: str) -> str:
    """Suggest the devices with one of these words, vendors apart, or with a similar name."""
    vendors = {name.partition(" ")[0].lower() for name in DEVICES}
    sharing = [name for name in DEVICES if (_words(words) - vendors) & _words(name)]
    return did_you_mean(sharing) or suggest(words, DEVICES)


def _words(name: str) -> set[str]:
    apart = re.sub(r"\b(rtx)(?=\d)", r"\1 ", name.lower())  # rtx4090
    return set(re.split(r"[\s_-]+", apart)) - {""}
