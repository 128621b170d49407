"""A composed config, checked and read: typed values first, without torch, whose import takes seconds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmtrain.run.compose.paths import key_of
from lmtrain.run.execution.typed_places import refuse_places
from lmtrain.run.planning.callbacks import require_end
from lmtrain.run.run_config import KEYS, SCALARS, RunConfig, read_config
from lmtrain.run.schema.check import REPEATS, check_node, refuse_foreign
from lmtrain.run.validators.given import require_given
from lmtrain.run.validators.passes import require_passes
from lmtrain.run.validators.tokenizer_size import require_size_for_model
from lmtrain.run.validators.typed_values import refuse_typed
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
    from lmtrain.run.validators.adapters import require_trained_weights  # not for --cfg
    from lmtrain.run.validators.conversations import require_conversations

    require_conversations(config)
    require_trained_weights(config)
    require_given(values)
    refuse_typed(config, typed)
    if {key_of(word).partition(".")[0] for word in typed} & OF_RAMPS:
        from lmtrain.run.builders.schedules import require_ramps_of_budget  # where one may be wrong

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
