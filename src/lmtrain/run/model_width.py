"""`scaling=model_width`: AdamW's rates of a small model, at a published model's width."""

from typing import Any, Final

from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.run.compose.group_options import file_values
from lmtrain.run.compose.paths import option_names
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.node import node_at

# AdamW's 3e-3 at a width of 128 is 3e-4 at 4,096 and 1.9e-4 at 8,192; Llama 3 took 3e-4 and 1.5e-4.
EXPONENT: Final = 2 / 3


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
        f"optimizer.{name}": optimizer[name] * (base_width / width) ** EXPONENT
        for name in rates
        if name not in kept and f"optimizer.{name}" not in typed
        if optimizer[name] is not None and any(each.get(name) == optimizer[name] for each in usual)
    }
