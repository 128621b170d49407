"""Let sharded modules forget their gathered weights, after a write to the shards."""

from torch import nn
from torch.distributed.fsdp import FSDPModule


def reshard(model: nn.Module) -> None:
    """Free gathered weights of each sharded module, for the next forward pass to gather anew; a no-op for others."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
