"""`strategy=auto`: every strategy with the sizes of its groups that the ranks take, weighed by the planner of a run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from lmtrain.accounting.batches import MICRO_BATCH
from lmtrain.accounting.options.parts import RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning.choices import (
    Candidate,
    SettingOf,
    Words,
    chooses_recompute,
    ranked,
    recomputations,
    setting_if_known,
    setting_on_paper,
    weighed,
)
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.task import example_rows

# The largest groups that are tried, by their settings; a tensor group stays within a node.
MOST: Final[Mapping[str, int]] = {
    "tensor_size": 8, "context_size": 8, "pipeline_size": 16, "expert_size": 64,
}  # fmt: skip
# Models that validators/parallelism.py refuses by the sizes in their settings, as a run refuses the built ones.
CUT_BY_SIZES: Final = ("lmtrain.models.gpt2.GPT2", "lmtrain.models.llama.Llama", "lmtrain.models.nano.nano")
MOST_OTHERS: Final = 3  # named next to the choice


def with_strategy(config: RunConfig) -> tuple[RunConfig, str | None]:
    """Return the config with the chosen strategy, and the reason; unchanged where it is typed, or nothing is known.

    The fastest that fits; else the smallest. The micro batch is the plan's: `auto` the largest that fits each, another
    as it is typed, and one example where that fits none.

    Raises:
        ConfigurationError: No strategy divides the batch.
    """
    if not config.spread.chooses or config.num_ranks == 1 or config.cluster.device_bytes is None:
        return config, None
    single = with_words(config, [f"{MICRO_BATCH}={example_rows(config)}"])
    is_settled = config.batch.is_auto or config.batch == single.batch
    tried: list[Candidate] = []
    for asked in (config,) if is_settled else (config, single):
        tried = [*_under_strategies(asked)] or tried
        if any(one.fits for one in tried):
            break
    if not tried:
        config.divided(single.batch if config.batch.is_auto else config.batch)
        return config, None  # the plan names the fault
    by_choice = [*ranked(tried), *sorted(tried, key=lambda one: one.num_bytes)]
    best = by_choice[0]
    recompute = config.recompute if chooses_recompute(config) else best.config.recompute
    return config.changed(strategy=best.config.strategy, recompute=recompute), _reason(config, best, by_choice)


def _takes_model(config: RunConfig) -> bool:
    """Return whether the strategy leaves layers whole, or those of the model were asked already."""
    spread = config.spread
    cuts = max(spread.tensor_ranks, spread.context_ranks, spread.expert_ranks, spread.pipeline.num_stages) > 1
    return not cuts or config.model.target in CUT_BY_SIZES


def _reason(config: RunConfig, best: Candidate, by_choice: Sequence[Candidate]) -> str:
    """Return three lines: the choice, where the time of its step goes, and the best of the other strategies."""
    start = f"strategy={config.strategy.word}"
    sizes = f"{best.num_bytes / 1e9:.1f} GB of {(best.device_bytes or 0) / 1e9:.1f} GB per device"
    speed = f", {1 / best.cost:,.0f} tokens/s of each" if best.cost else ""
    name = _name(config, best)
    lines = [f"{start}: {f'{name} takes {sizes}{speed}' if best.fits else f'nothing fits; {name} needs {sizes}'}"]
    if best.step:
        bubble = best.config.spread.pipeline.bubble_share(best.batch.accumulation_micro_steps)
        idle = f", {bubble:.1%} of the step for other stages" if bubble else ""
        computing = (
            f"computes for {best.step.compute_seconds:.3g} s and waits for {best.step.exposed_seconds:.3g} s{idle}"
        )
        messages = f"its messages take {best.step.message_seconds:.3g} s"
        lines.append(f"{start}: a step of {best.step.seconds:.3g} s {computing}; {messages}")
    others: dict[str, str] = {}
    for one in by_choice:
        word = one.config.strategy.word
        if word != best.config.strategy.word and word not in others and len(others) < MOST_OTHERS:
            slower = f"{best.cost / one.cost - 1:+.0%}" if best.cost and one.cost else "as fast"
            others[word] = f"{_name(config, one)} {slower if one.fits else f'needs {one.num_bytes / 1e9:,.0f} GB'}"
    return "\n".join([*lines, *([f"{start}: otherwise {'; '.join(others.values())}"] if others else [])])


def _name(config: RunConfig, one: Candidate) -> str:
    """Return the words of a candidate; those of recomputation are left to the line about it, where that is chosen."""
    is_left = chooses_recompute(config)
    words = (word for word in one.words if not (is_left and word.startswith(f"{RecomputeFacts.group}=")))
    return " ".join((one.config.strategy.word, *words))


def _under_strategies(config: RunConfig) -> Iterator[Candidate]:
    """Yield the config under each strategy of one process's numbers and each size of its groups.

    Each is weighed as it is and, where that does not fit, with its savings; and recomputed: where nothing is, every
    block may be, of models that need not be measured for it.
    """
    again: dict[Words, SettingOf] = {(): setting_on_paper}
    if chooses_recompute(config):
        again = {(word,): setting_on_paper for word in recomputations()}
    elif (config.facts(RecomputeFacts) or RecomputeFacts()).keeps_all:
        again |= {(word,): setting_if_known for word in words_of(RecomputeFacts, lambda facts: facts.keeps_least)}
    for word in _strategies(config):
        own, new = config.strategy.values, with_words(config, [word]).strategy
        kept = {key: own[key] for key in new.values if key in own and not key.startswith("_")}  # the settings of both
        changed = config.changed(strategy=new.changed(**kept))
        savings = tuple(f"{ModelSpread.group}.{saving}" for saving in changed.spread.savings)
        for sizes, (recompute, setting_of) in product(_sizes(changed), again.items()):
            for words in dict.fromkeys(((), savings)):
                found = weighed(changed, (*sizes, *recompute, *words), setting_of=setting_of)
                if found and _takes_model(found.config):
                    yield found
                    if found.fits:
                        break


def _sizes(config: RunConfig) -> Iterator[Words]:
    """Yield the words for each size of a strategy's groups; of one with every kind of group, for two kinds or more."""
    settings, experts = config.strategy.values, config.model.node("experts")
    num_experts = int(experts.get("num_experts") or 1) if experts is not None else 1
    limits = {"tensor_size": config.trainer.devices, "expert_size": num_experts}
    tried = {
        name: [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= min(most, limits.get(name, most))]
        for name, most in MOST.items()
        if name in settings
    }
    least = 2 if config.spread.is_general else 1
    if least == 1:
        yield ()
    for chosen in product(*tried.values()):
        num_kinds = sum(size > 1 for size in chosen)
        together = math.prod(size for name, size in zip(tried, chosen, strict=True) if name != "expert_size")
        if least <= num_kinds <= 3 and config.num_ranks % together == 0:
            yield tuple(
                f"{ModelSpread.group}.{name}={size}"
                for name, size in zip(tried, chosen, strict=True)
                if size > 1 or settings[name] != 1
            )


def _strategies(config: RunConfig) -> list[str]:
    """Return the strategies in the order of their choice where they are as fast: the simplest first."""

    def turn(word: str) -> tuple[bool, bool, bool, bool, bool]:
        spread = with_words(config, [word]).spread
        parts = spread.tensor_ranks > 1, spread.context_ranks > 1, spread.pipeline.num_stages > 1
        return (spread.is_general, *parts, spread.cuts_parameters)

    return sorted(words_of(ModelSpread, lambda spread: spread.can_be_chosen), key=turn)
