"""Changes for less memory of a device, as the words to type; each option states its own.

A strategy's settings and other strategies, recomputation, a loss in chunks, optimizer state in host memory.
"""

from collections.abc import Callable, Sequence
from functools import partial

from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.options.parts import LossFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.fit import NODE, NUMBERS_OF_DEVICES, Setting, least_memory
from lmtrain.errors import ConfigurationError
from lmtrain.report.plans.fit_advice import Levers, Memory, Words
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning.auto_strategy import require_parts_of_strategy
from lmtrain.run.planning.fit_setting import fit_setting
from lmtrain.run.planning.known_models import facts_known, key_of, model_facts
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.tried_words import with_words, words_of_devices
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.validators.cpu_offload import KEY


def levers_of(config: RunConfig, facts: ModelFacts) -> Levers:
    """Return all levers of a config, with its model's facts; a single device has nothing to cut the model over."""
    at_least_a_node = with_words(config, words_of_devices(config, max(NODE, config.num_ranks)))
    return Levers(
        settings=settings_of_strategy(config),
        strategies=strategies(config, lambda _: True) if config.num_ranks > 1 else [],
        on_more=strategies(at_least_a_node, lambda spread: spread.shards_over == "all ranks"),
        others=other_levers(config),
        most_devices=words_of_devices(config, NUMBERS_OF_DEVICES[-1]),
        memory=memory_with(config, facts),
        trains=partial(trains, config),
    )


def settings_of_strategy(config: RunConfig) -> list[Words]:
    """Return the settings of its own strategy."""
    spread = config.spread
    found = spread.settings_for_less(config.num_ranks)
    return [tuple(f"{spread.group}.{word}" for word in words) for words in found]


def strategies(config: RunConfig, holds: Callable[[ModelSpread], bool]) -> list[Words]:
    """Return the strategies that cut the model and are as asked, each as it is and with its settings."""
    found: list[Words] = []
    for word in words_of(ModelSpread, lambda facts: facts.cuts_parameters and facts.takes_many and holds(facts)):
        changed = with_words(config, [word])
        found += [(word, *settings) for settings in [(), *settings_of_strategy(changed)]]
    return found


def other_levers(config: RunConfig) -> list[Sequence[str]]:
    """Return the words of each lever that is no strategy, without those chosen already."""
    recompute = facts_of(config.recompute.values, RecomputeFacts, allowed=config.allowed) or RecomputeFacts()
    loss = facts_of(config.loss.values, LossFacts, allowed=config.allowed) or LossFacts()
    is_offloaded = config.optimizer_cpu_offload or config.cluster.device is None
    found = [
        [] if recompute.keeps_least else words_of(RecomputeFacts, lambda facts: facts.keeps_least),
        [] if loss.in_chunks else words_of(LossFacts, lambda facts: facts.in_chunks),
        [] if is_offloaded else [f"{KEY}=true"],
    ]
    return [words for words in found if words]


def memory_with(config: RunConfig, facts: ModelFacts) -> Memory:
    """Return the memory's setting as a function of words typed beside; `facts` are those of the config as it is.

    None where they are refused, where the model alone is too large, or where it is new so and not to be measured.
    """
    known: dict[str, ModelFacts | None] = {key_of(config, planned_setting(config)): facts}

    def memory(words: Sequence[str], *, measures: bool) -> Setting | None:
        try:
            changed = with_words(config, words)
            planned = planned_setting(changed)
            least = fit_setting(planned, facts)
            if least.device_bytes is not None and least_memory(least, changed.num_ranks) > least.device_bytes:
                return None
            key = key_of(changed, planned)
            if key not in known:
                known[key] = facts_known(changed, planned)
            if measures and known[key] is None:
                known[key] = model_facts(changed, planned)
        except ConfigurationError:
            return None
        found = known[key]
        return fit_setting(planned, found) if found else None

    return memory


def trains(config: RunConfig, words: Sequence[str]) -> bool:
    """Tell whether a strategy takes the model and its optimizer; one that shares layers is asked, which needs torch."""
    try:
        require_parts_of_strategy(with_words(config, words))
    except ConfigurationError:
        return False
    return True
