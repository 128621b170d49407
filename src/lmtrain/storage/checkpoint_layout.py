"""The two layouts of a checkpoint's folder: one file with the whole state, or a folder of shards."""

from typing import Final

STATE: Final = "state.pt"  # all of it
SHARDED: Final = "sharded"  # of torch.distributed.checkpoint
REST: Final = "meta.pt"  # in SHARDED, under Lightning's name: all but weights and optimizer state
WEIGHTS: Final = "state_dict"  # Lightning's names in the one file
OPTIMIZERS: Final = "optimizer_states"


def sharded_name(index: int) -> str:
    """Return the name of an optimizer's state among the shards, as Lightning gives it."""
    return f"optimizer_{index}"
