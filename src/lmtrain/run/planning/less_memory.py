"""Options for less memory, each advised for its own facts."""

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.planning.levers import other_levers
from lmtrain.run.run_config import RunConfig


def less_memory(config: RunConfig) -> str:
    """Name further options: recomputation, a loss in chunks, optimizer state in host memory, shards."""
    found = [one_of(words) for words in other_levers(config)]
    shards = one_of(words_of(ModelSpread, lambda facts: facts.shards_most))
    return f"{', '.join([*found, 'or ' * bool(found) + shards])} over more devices"
