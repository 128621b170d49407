"""Checkpoints of either layout for every strategy: shards read as one whole state, a whole state cut into shards.

A whole state numbers an optimizer's parameters, a sharded one names them; both list them in the order of the
optimizer's groups, the key from one to the other.
"""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor, distribute_tensor

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.shard_reading import read_metadata, read_shards
from lmtrain.storage.checkpoint_layout import OPTIMIZERS, REST, WEIGHTS, sharded_name
from lmtrain.storage.plain_values import load_plain


def read_whole(sharded: Path) -> dict[str, Any]:
    """Return a sharded checkpoint in the layout of one file, on this process's CPU; each process reads alone.

    Raises:
        EnvironmentProblem: It holds more than plain values and tensors, or no paths of its values.
    """
    metadata = read_metadata(sharded)
    paths: dict[str, tuple[str | int, ...]] | None = metadata.planner_data
    if paths is None or not paths.keys() >= metadata.state_dict_metadata.keys():
        raise EnvironmentProblem(f"{sharded} does not name the place of each of its values; use another checkpoint.")
    flat: dict[str, Any] = {
        name: torch.empty(facts.size, dtype=facts.properties.dtype)
        if isinstance(facts, TensorStorageMetadata)
        else None
        for name, facts in metadata.state_dict_metadata.items()
    }
    read_shards(flat, sharded, alone=True)
    nested = _nested({paths[name]: value for name, value in flat.items()})
    num_optimizers = sum(name != WEIGHTS for name in nested)
    optimizers = [{"state": {}, **nested[sharded_name(index)]} for index in range(num_optimizers)]
    return {**load_plain(sharded / REST), WEIGHTS: nested[WEIGHTS], OPTIMIZERS: optimizers}


def part_weights(whole: Mapping[str, Tensor], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return whole weights laid out over the ranks as those of the same names in `like`."""
    return {name: _part(value, like.get(name)) for name, value in whole.items()}


def part_optimizer_state(whole: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's whole, numbered state with the names and the layout of `like`, the state of the same one.

    Raises:
        EnvironmentProblem: It belongs to an optimizer of other groups.
    """
    numbers, names = ([group["params"] for group in state["param_groups"]] for state in (whole, like))
    if [len(group) for group in numbers] != [len(group) for group in names]:
        raise EnvironmentProblem(
            f"The checkpoint's optimizer has groups of {[*map(len, numbers)]} parameters, this one has groups of "
            f"{[*map(len, names)]}; go on with the optimizer of the checkpoint's run."
        )
    name_of = dict(zip(chain(*numbers), chain(*names), strict=True))
    state = {
        name_of[number]: {
            key: _part(value, like["state"].get(name_of[number], {}).get(key)) for key, value in one.items()
        }
        for number, one in whole["state"].items()
    }
    groups = [{**group, "params": [*own]} for group, own in zip(whole["param_groups"], names, strict=True)]
    return {"state": state, "param_groups": groups}


def _part(value: Any, like: Any) -> Any:
    """Cut a rank's part out of a value read by every rank: no communication."""
    if not isinstance(value, Tensor) or not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _nested(flat: Mapping[tuple[str | int, ...], Any]) -> Any:
    """Build the mappings and lists along paths; a level with keys from 0 on is a list."""
    if () in flat:
        return flat[()]
    levels: dict[str | int, dict[tuple[str | int, ...], Any]] = {}
    for (first, *rest), value in flat.items():
        levels.setdefault(first, {})[tuple(rest)] = value
    if all(isinstance(key, int) for key in levels):
        return [_nested(levels[key]) for key in sorted(levels)]
    return {key: _nested(level) for key, level in levels.items()}
