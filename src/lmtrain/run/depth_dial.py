"""`scaling=depth_dial`: batch, learning rates and decay of a nano, by its depth, from those of depth 12."""

from typing import Any, Final

from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.parts import ScalingFacts
from lmtrain.accounting.scaling_laws.depth_scaling import depth_scaling
from lmtrain.errors import wrong
from lmtrain.run.schema.check import check_value
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.node import node_at
from lmtrain.run.schema.targets import word_of

BATCH: Final = "batch.tokens_per_step"
OF_TABLES: Final = ("optimizer.embedding_lr", "optimizer.head_lr")
RATES: Final = ("optimizer.lr", *OF_TABLES, "optimizer.vector_lr")


def depth_dial(config: dict[str, Any], typed: frozenset[str]) -> dict[str, float]:
    """Derive the batch, unless it was typed, and scale rates and decay to it and to the depth.

    Raises:
        ConfigurationError: Another model than nano, or another optimizer than muon: depth 12 was tuned for these.
    """
    model, optimizer = facts_of(config["model"], ScalingFacts), facts_of(config["optimizer"], OptimizerFacts)
    for group, is_start, wanted, fix in (
        ("model", model and model.carries_over == "depth", "nano", "model=nano, or scaling=width_transfer for a Llama"),
        ("optimizer", optimizer and optimizer.dials_depth, "muon", "optimizer=muon_nano"),
    ):
        if not is_start:
            raise wrong(group, f"{wanted} with scaling=depth_dial", word_of(config[group]), f"{fix}, or scaling=none")
    given = check_value(node_at(config, BATCH), int, key=BATCH) if BATCH in typed else None
    found = depth_scaling(
        check_value(node_at(config, "model.depth"), int, key="model.depth"),
        vocab_size=check_value(node_at(config, "model.vocab_size"), int, key="model.vocab_size"),
        tokens_per_step=given,
    )
    rates = {key: _rate(config, key) * found.lr_factor for key in RATES}
    rates |= {key: rates[key] * found.table_lr_factor for key in OF_TABLES}
    decay = _rate(config, "optimizer.weight_decay") * found.weight_decay_factor
    return {BATCH: found.tokens_per_step, **rates, **({"optimizer.weight_decay": decay} if decay else {})}


def _rate(config: dict[str, Any], key: str) -> float:
    return check_value(node_at(config, key), float, key=key)
