"""A composed config, checked and read: typed values are checked first, and torch is loaded as late as possible."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmtrain.composition.execution.typed_places import refuse_places
from lmtrain.composition.nodes.check import check_node
from lmtrain.composition.rules.tokenizer_size import require_size_for_model
from lmtrain.composition.rules.typed_values import refuse_typed
from lmtrain.composition.run_config import KEYS, SCALARS, RunConfig, read_config
from lmtrain.training.lean_import import import_lightning

REPEATS: Final = "data"  # it holds other nodes: theirs is the key to name, so it is looked at last


def check_config(values: Mapping[str, Any], *, allowed: Sequence[str], typed: Sequence[str] = ()) -> RunConfig:
    """Read a whole config with every value checked and every amount a number.

    Raises:
        ConfigurationError: The first error.
    """
    config = read_config(values, allowed=allowed)
    refuse_typed(config, typed)
    refuse_places(values, typed)
    import_lightning()
    require_size_for_model(config)
    names = (*sorted({*KEYS} - {*SCALARS, REPEATS}), REPEATS)
    nodes = {name: check_node(values[name], key=name, allowed=allowed) for name in names}
    return read_config({**{name: getattr(config, name) for name in SCALARS}, **nodes}, allowed=allowed)
