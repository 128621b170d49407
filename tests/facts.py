"""What options say of themselves, by their words on the command line."""

from functools import cache
from typing import Any

from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.schema.facts import require_facts


@cache
def node(group: str, word: str) -> dict[str, Any]:
    """Return an option as it is composed."""
    return compose_config([f"{group}={word}"])[group]


def optimizer(word: str, **settings: Any) -> OptimizerFacts:
    """Return what an optimizer says, with settings of its own or these."""
    return require_facts({**node("optimizer", word), **settings}, OptimizerFacts)


def precision(word: str) -> PrecisionFacts:
    """Return what a precision says on a machine that has bf16."""
    return require_facts(node("precision", word), PrecisionFacts, has_bf16=True)
