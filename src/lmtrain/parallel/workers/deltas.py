"""The mean of a tensor over all ranks, sent in few bits: each rank rounds its own values, sums are taken in fp32.

In fp32 it is one all-reduce. Otherwise each rank is sent its slice of every other rank's rounded values, takes their
mean, and sends that, rounded again, to all: as many bytes as an all-reduce of the format, and the same result on every
rank. W ranks, N values, n values of a slice, in blocks of `BLOCK_VALUES`.
"""

from typing import Any

import torch
from torch import Tensor, distributed

from lmtrain.accounting.options.outer_settings import BLOCK_VALUES, SCALE_BYTES, DeltaFormat

# Under its newer name from torch 2.13 on, where the older one warns.
gather_one: Any = vars(distributed).get("all_gather_single") or vars(distributed)["all_gather_into_tensor"]
LARGEST = {"int8": 127, "int4": 7}


def mean_over_ranks(values: Tensor, delta: DeltaFormat) -> tuple[Tensor, float]:
    """Return the mean of fp32 values [N] over all ranks, and the bytes sent by this rank; every rank must call it."""
    num_ranks = distributed.get_world_size()
    if delta == "fp32":
        distributed.all_reduce(values)
        return values / num_ranks, 2 * (num_ranks - 1) / num_ranks * values.nbytes
    unit = num_ranks * BLOCK_VALUES
    slices = torch.nn.functional.pad(values, (0, -len(values) % unit)).view(num_ranks, -1)  # [W, n]
    rounded = encode(slices, delta)
    received = torch.empty_like(rounded)
    distributed.all_to_all_single(received, rounded)
    mean = encode(decode(received, delta).mean(0, keepdim=True), delta)
    means = torch.empty_like(rounded)
    gather_one(means.view(-1), mean[0].contiguous())
    return decode(means, delta).flatten()[: len(values)], 2 * (num_ranks - 1) * mean.nbytes


def encode(values: Tensor, delta: DeltaFormat) -> Tensor:
    """Round rows of fp32 values: [W, n] -> bytes [W, B], whole blocks first, then their scales."""
    if delta == "bf16":
        return values.bfloat16().view(torch.uint8)
    blocks = values.unflatten(1, (-1, BLOCK_VALUES))
    scales = blocks.abs().amax(-1, keepdim=True) / LARGEST[delta]  # not finite where a value is not
    integers = (blocks / scales.masked_fill(scales == 0, 1)).round().to(torch.int8).flatten(1)
    if delta == "int4":
        low, high = (integers + 8).view(torch.uint8).unflatten(1, (-1, 2)).unbind(-1)
        packed = low | high << 4
    else:
        packed = integers.view(torch.uint8)
    return torch.cat([packed, scales.flatten(1).view(torch.uint8)], dim=1)


def decode(rounded: Tensor, delta: DeltaFormat) -> Tensor:
    """Return the values of `encode`: bytes [W, B] -> fp32 [W, n]."""
    if delta == "bf16":
        return rounded.view(torch.bfloat16).float()
    per_byte = 1 if delta == "int8" else 2
    num_blocks = rounded.shape[1] // (BLOCK_VALUES // per_byte + SCALE_BYTES)
    packed, scales = rounded.split([num_blocks * BLOCK_VALUES // per_byte, num_blocks * SCALE_BYTES], dim=1)
    if delta == "int4":
        integers = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).view(torch.int8) - 8
    else:
        integers = packed.contiguous().view(torch.int8)
    blocks = integers.float().unflatten(1, (num_blocks, BLOCK_VALUES))
    return (blocks * scales.contiguous().view(torch.float32).unsqueeze(-1)).flatten(1)
