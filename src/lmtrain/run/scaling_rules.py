"""The rules of `scaling`: settings derived from a model's depth or width; `lmtrain.run.scaling` applies them."""

from collections.abc import Mapping
from typing import Any, Final

from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.parts import ScalingFacts
from lmtrain.accounting.scaling_laws.depth_scaling import depth_scaling
from lmtrain.accounting.scaling_laws.mup import Update, WidthTransfer
from lmtrain.accounting.scaling_laws.mup import width_transfer as factors_of
from lmtrain.errors import wrong
from lmtrain.run.compose.group_options import file_values, one_of, words_of
from lmtrain.run.compose.paths import option_names
from lmtrain.run.schema.check import check_value
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.node import node_at
from lmtrain.run.schema.signatures import default_settings
from lmtrain.run.schema.targets import word_of

BATCH: Final = "batch.tokens_per_step"
OF_TABLES: Final = ("optimizer.embedding_lr", "optimizer.head_lr")
RATES: Final = ("optimizer.lr", *OF_TABLES, "optimizer.vector_lr")
# AdamW's 3e-3 at a width of 128 is 3e-4 at 4,096 and 1.9e-4 at 8,192; Llama 3 took 3e-4 and 1.5e-4.
WIDTH_EXPONENT: Final = 2 / 3
# Options of a Llama without a rule in the tables, or with a rule unlike their neighbours'.
WITHOUT_RULE: Final = {
    "tie_embeddings": "a head and a table want different rates",
    "experts": "a router is neither a matrix nor a head",
    "value_gate_width": "a gate has no rule",
}


def depth_dial(config: dict[str, Any], typed: frozenset[str]) -> dict[str, float]:
    """Derive a nano's batch, unless it was typed, and scale rates and decay to it and to the depth.

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


def model_width(config: dict[str, Any], typed: frozenset[str], *, base_width: int) -> dict[str, float]:
    """Derive AdamW's rates from those of the base width, by the power of the widths that Llama 3's peak rates follow.

    Rates that were typed, or set by an experiment, hold as they are, and so does the rate of Muon's matrices.
    """
    width, optimizer = node_at(config, "model.width"), config["optimizer"]
    found = facts_of(optimizer, OptimizerFacts)
    if not isinstance(width, int) or found is None or found.update is None:
        return {}
    rates = [name for name in optimizer if name == "lr" or name.endswith("_lr")]
    kept = {"lr"} if found.update == "spectrum" else set[str]()
    options = [file_values(f"optimizer={name}") for name in option_names("optimizer")]
    usual = [each for each in options if each.get("_target_") == optimizer["_target_"]]
    return {
        f"optimizer.{name}": optimizer[name] * (base_width / width) ** WIDTH_EXPONENT
        for name in rates
        if name not in kept and f"optimizer.{name}" not in typed
        if optimizer[name] is not None and any(each.get(name) == optimizer[name] for each in usual)
    }


def width_transfer(
    config: dict[str, Any], typed: frozenset[str], *, base_width: int, base_head_width: int | None = None
) -> dict[str, float]:
    """Derive spreads at the start, learning rates, decay and the scale of attention from those of the base width.

    Raises:
        ConfigurationError: Another model than a Llama, or an option or optimizer without a rule.
    """
    del typed  # typed values are the base's
    settings = _settings(config)
    head_width = settings["head_width"] or settings["width"] // settings["num_heads"]
    bases = {"base_width": base_width, "base_head_width": head_width if base_head_width is None else base_head_width}
    for name, value in bases.items():
        if value < 1:
            raise wrong(f"scaling.{name}", "at least 1", value, "1")
    optimizer = facts_of(config["optimizer"], OptimizerFacts)
    update = _update(config["optimizer"], optimizer)
    factors = factors_of(settings["width"], head_width=head_width, update=update, **bases)
    return {**_of_model(settings, factors), **_of_optimizer(config, factors, update)}


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the model's settings with every default filled in, the ones used here checked."""
    node = config["model"]
    found = facts_of(node, ScalingFacts)
    if found is None or found.carries_over != "width":
        instead = "model=llama_tiny, scaling=depth_dial for model=nano, or scaling=none"
        raise wrong("model", "a Llama with scaling=width_transfer", word_of(node), instead)
    settings = default_settings(str(node["_target_"])) | node
    for name, reason in WITHOUT_RULE.items():
        if value := settings[name]:
            raise wrong(f"model.{name}", f"null or false with scaling=width_transfer: {reason}", value)
    kinds: dict[str, Any] = {"width": int, "num_heads": int, "head_width": int | None, "init_std": float}
    kinds |= {"embedding_init_std": float | None, "head_init_std": float | None, "attention_multiplier": float}
    return settings | {name: check_value(settings.get(name), kind, key=f"model.{name}") for name, kind in kinds.items()}


def _update(node: Mapping[str, Any], found: OptimizerFacts | None) -> Update:
    if found is not None and found.update is not None:
        return found.update
    reason = OptimizerFacts.without_rule if found is None else found.without_rule
    rule = f"one with a rule for scaling=width_transfer ({reason})"
    raise wrong(
        "optimizer", rule, word_of(node), one_of(words_of(OptimizerFacts, lambda other: other.update is not None))
    )


def _of_model(settings: dict[str, Any], factors: WidthTransfer) -> dict[str, float]:
    """Scale how matrices and head start, and keep how tables do; a head that starts at zero stays there."""
    std: float = settings["init_std"]
    head_std: float = std if settings["head_init_std"] is None else settings["head_init_std"]
    derived: dict[str, float] = {"model.init_std": std * factors.matrix_init_std}
    if settings["embedding_init_std"] is None:
        derived["model.embedding_init_std"] = std
    if head_std:
        derived["model.head_init_std"] = head_std * factors.head_init_std
    if factors.attention != 1.0:
        derived["model.attention_multiplier"] = settings["attention_multiplier"] * factors.attention
    return derived


def _of_optimizer(config: dict[str, Any], factors: WidthTransfer, update: Update) -> dict[str, float]:
    if update == "spectrum":
        return {"optimizer.head_lr": _number(config, "optimizer.head_lr", 1.0) * factors.head_lr}
    by_kind = {"matrices": factors.matrix_lr, "head": factors.head_lr}
    keys = {f"optimizer.lr_multipliers.{kind}": factor for kind, factor in by_kind.items()}
    derived = {key: _number(config, key, 1.0) * factor for key, factor in keys.items()}
    decay = _number(config, "optimizer.weight_decay", 0.0)
    if not decay:
        return derived
    found = facts_of(config["optimizer"], OptimizerFacts)
    if found is not None and found.decay == "gradient":
        word = word_of(config["optimizer"])
        rule = f"0 with scaling=width_transfer, as {word} adds it to a gradient whose size changes with width"
        raise wrong("optimizer.weight_decay", rule, decay)
    if node_at(config, "optimizer.decay_embeddings"):
        raise wrong("optimizer.decay_embeddings", "false with scaling=width_transfer", "true")
    return derived | {"optimizer.weight_decay": decay * factors.weight_decay}


def _number(config: dict[str, Any], key: str, default: float) -> float:
    found = node_at(config, key)
    return default if found is None else check_value(found, float, key=key)
