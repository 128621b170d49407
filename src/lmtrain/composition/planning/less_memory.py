"""Options for less memory, each advised for its own facts."""

from lmtrain.accounting.options.parts import LossFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.composition.command_line.group_options import one_of, words_of
from lmtrain.composition.nodes.facts import facts_of
from lmtrain.composition.rules.cpu_offload import KEY
from lmtrain.composition.run_config import RunConfig


def less_memory(config: RunConfig) -> str:
    """Name further options: recomputation, a loss in chunks, optimizer state in host memory, shards."""
    allowed = config.allowed
    recompute = facts_of(config.recompute.values, RecomputeFacts, allowed=allowed) or RecomputeFacts()
    loss = facts_of(config.loss.values, LossFacts, allowed=allowed) or LossFacts()
    found: list[str] = []
    if not recompute.keeps_least:
        found.append(one_of(words_of(RecomputeFacts, lambda facts: facts.keeps_least)))
    if not loss.in_chunks:
        found.append(one_of(words_of(LossFacts, lambda facts: facts.in_chunks)))
    if config.cluster.device is not None and not config.optimizer_cpu_offload:
        found.append(f"{KEY}=true")
    shards = one_of(words_of(ModelSpread, lambda facts: facts.shards_most))
    return f"{', '.join([*found, 'or ' * bool(found) + shards])} over more devices"
