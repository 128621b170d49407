"""The options of conf/optimizer, built as a run builds them, on any model."""

from functools import cache
from typing import Any

import torch
from torch import nn

from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.schema.node import instantiate

EVERY = sorted((conf_folder() / "optimizer").glob("*.yaml"))
FILES = [path for path in EVERY if "_target_: ???" not in path.read_text()]  # but the one of a run to train on from
OPTIONS = [path.stem for path in FILES]
OWN = [path.stem for path in FILES if f".{path.stem}\n" in path.read_text()]  # others are settings of one of these
# How near weights that are sharded stay to whole ones: sums in another order; Muon's products are in bf16.
# adamw_8bit compiles for minutes here and keeps 8 bits only of larger matrices: it has a test of its own.
NEAR = dict.fromkeys(set(OWN) - {"adafactor", "adamw_8bit"}, 1e-5) | {"muon": 4e-3}


def build(option: str, model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    """Build an option with its own settings, or these in their place."""
    return instantiate({**_node(option), **settings}, key="optimizer")(model)


@cache
def _node(option: str) -> dict[str, Any]:
    return compose_config([f"optimizer={option}"])["optimizer"]
