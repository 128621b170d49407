"""A composed config, checked and read: typed values first, without torch, whose import takes seconds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmtrain.composition.command_line.paths import key_of
from lmtrain.composition.execution.typed_places import refuse_places
from lmtrain.composition.nodes.check import REPEATS, check_node, refuse_foreign
from lmtrain.composition.planning.callbacks import require_end
from lmtrain.composition.rules.given import require_given
from lmtrain.composition.rules.passes import require_passes
from lmtrain.composition.rules.tokenizer_size import require_size_for_model
from lmtrain.composition.rules.typed_values import refuse_typed
from lmtrain.composition.run_config import KEYS, SCALARS, RunConfig, read_config
from lmtrain.training.lean_import import import_lightning

OF_RAMPS: Final = frozenset({"schedule", "momentum_schedule", "budget", "batch"})


def refuse_early(values: Mapping[str, Any], *, allowed: Sequence[str], typed: Sequence[str]) -> RunConfig:
    """Refuse wrong typed values, paths and devices of a config, as far as known without torch, and return its reading.

    Raises:
        ConfigurationError: The first foreign target or wrong value, or nothing under a name.
        DataError: No data at a path.
        EnvironmentProblem: No such device on this machine, or a folder closed to writing.
    """
    refuse_foreign(values, allowed=allowed)
    config = read_config(values, allowed=allowed)
    require_passes(config)
    require_end(config, typed)
    from lmtrain.composition.rules.adapters import require_trained_weights  # not for --cfg
    from lmtrain.composition.rules.conversations import require_conversations

    require_conversations(config)
    require_trained_weights(config)
    require_given(values)
    refuse_typed(config, typed)
    if {key_of(word).partition(".")[0] for word in typed} & OF_RAMPS:
        from lmtrain.composition.parts.schedules import require_ramps_of_budget  # where one may be wrong

        require_ramps_of_budget(config)
    refuse_places(values, typed)
    return config


def check_config(values: Mapping[str, Any], *, allowed: Sequence[str]) -> RunConfig:
    """Read a whole config with every value checked and every amount a number.

    Raises:
        ConfigurationError: The first error.
    """
    config = read_config(values, allowed=allowed)
    import_lightning()
    require_size_for_model(config)
    names = (*sorted({*KEYS} - {*SCALARS, REPEATS}), REPEATS)
    nodes = {name: check_node(values[name], key=name, allowed=allowed) for name in names}
    return read_config({**{name: getattr(config, name) for name in SCALARS}, **nodes}, allowed=allowed)
