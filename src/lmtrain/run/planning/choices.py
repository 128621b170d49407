"""What a plan chooses and advises: candidates weighed by one planner, the fastest that fits first.

`strategy=auto` (strategy_choice.py), `recompute=auto` and advice all weigh configs by the memory and the time of their
step. Candidates within NEAR of the fastest are as good, and the first of them is taken.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Final

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.budgets import SECONDS_PER_HOUR
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.options.parts import CompileFacts, LossFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_at_most, format_count, format_quantity
from lmtrain.accounting.training_plan.plan import Advice, Plan
from lmtrain.accounting.training_plan.setting import Setting, largest_micro_batch, memory_of, with_micro_batch
from lmtrain.accounting.training_plan.speed import sent_in_step
from lmtrain.accounting.training_plan.step_time import PlannedModel, StepTime, modelled_step
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning.known_models import facts_known, model_facts
from lmtrain.run.planning.setting import planned_setting, with_facts
from lmtrain.run.planning.tried_words import NODE, with_words, words_of_devices
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.optimizer import CPU_OFFLOAD, require_settings
from lmtrain.run.validators.parallelism import require_parts

NEAR: Final = 1.02
MOST_DEVICES: Final = 16_384
LEAST_CONTEXT: Final = 1024
MARGIN: Final = 1.1  # for costs that grow with the run, such as validation
WITHOUT_TIME: Final = ("budget.hours=null", "budget.usd=null")
LEAST_FIRST: Final[tuple[Callable[[RecomputeFacts], bool], ...]] = (
    lambda facts: facts.keeps_all,
    lambda facts: facts.recomputes and facts.is_cut,
    lambda facts: facts.recomputes and not facts.is_cut,
)
Words = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A config with some words changed: its batch, a device's bytes, its step and device-seconds of a token.

    `step` and `cost` None are of a device or links of unknown rates.
    """

    words: Words
    config: RunConfig
    batch: BatchPlan
    num_bytes: int
    device_bytes: int | None
    cost: float | None
    step: StepTime | None = None

    @property
    def fits(self) -> bool:
        """Return whether the fullest moment of a step fits; an unknown memory fits all."""
        return self.device_bytes is None or self.num_bytes <= self.device_bytes


# Gives the inputs of the memory of a config; None for a model that would have to be measured.
SettingOf = Callable[[RunConfig], Setting | None]
# Plans a config with more words typed; None where they are refused.
Planned = Callable[[Sequence[str]], Plan | None]


def setting_on_paper(config: RunConfig) -> Setting:
    """Return the inputs of the memory of a device in the hardware table; a new model is measured."""
    setting = planned_setting(config)
    return with_facts(setting, model_facts(config, setting))


def setting_if_known(config: RunConfig) -> Setting | None:
    """Return the same where the model need not be measured."""
    setting = planned_setting(config)
    facts = facts_known(config, setting)
    return facts and with_facts(setting, facts)


def weighed(
    config: RunConfig, words: Sequence[str] = (), *, setting_of: SettingOf = setting_on_paper
) -> Candidate | None:
    """Weigh a config with some words typed, None where they are refused; an `auto` micro batch is the largest."""
    try:
        changed = with_words(config, words)
        require_settings(changed)  # a strategy may not take the optimizer
        setting = setting_of(changed)
        if setting is None:
            return None
        require_parts(changed, setting.facts.shape)
        batch = changed.divided(changed.batch)
    except ConfigurationError:
        return None
    if changed.batch.is_auto:
        batch = largest_micro_batch(setting, batch) or with_micro_batch(batch, setting.example_rows)
    shape = setting.facts.shape
    flops = flops_per_token(shape, batch.context_tokens)
    model = PlannedModel(shape=shape, parameters=setting.facts.parameters, flops=flops)
    step = modelled_step(setting, batch, model, sent_in_step(setting, batch, model).groups)
    return Candidate(
        words=tuple(words),
        config=changed,
        batch=batch,
        num_bytes=memory_of(setting, batch).total,
        device_bytes=setting.device_bytes,
        cost=step and step.seconds * batch.num_ranks / batch.tokens_per_step,
        step=step,
    )


def ranked(candidates: Iterable[Candidate | None]) -> list[Candidate]:
    """Return those that fit, the cheapest first; of nearly equal ones the first, and so of unknown costs."""
    fitting = [one for one in candidates if one and one.fits]
    least = min((one.cost for one in fitting if one.cost), default=0.0)
    return sorted(fitting, key=lambda one: 0.0 if (one.cost or 0.0) <= NEAR * least else one.cost or 0.0)


def chooses_recompute(config: RunConfig) -> bool:
    """Return whether the config leaves the recomputation to the plan."""
    found = config.facts(RecomputeFacts)
    return found is not None and found.chooses


def with_recompute(config: RunConfig, setting_of: SettingOf = setting_on_paper) -> tuple[RunConfig, str | None]:
    """Return the config with the chosen recomputation, and the reason; unchanged where it is typed.

    A typed micro batch has to fit. `setting_of` gives the inputs of the memory of a config.
    """
    if not chooses_recompute(config):
        return config, None
    words = recomputations()
    tried = [one for word in words if (one := weighed(config, [word], setting_of=setting_of))]
    if not tried:
        return with_words(config, words[-1:]), None  # the plan names the fault
    if tried[0].device_bytes is None:
        return tried[0].config, f"{config.recompute.word}: the device's memory is known only at the start of a run"
    best = next(iter(ranked(tried)), None) or min(tried, key=lambda one: one.num_bytes)
    room = f"{best.batch.micro_batch_tokens:,} tokens at a time fit" if best.fits else "nothing fits"
    size = (best.device_bytes or 0) / 1e9
    reason = f"recompute={config.recompute.word}: {best.config.recompute.word}, {room} {size:.1f} GB"
    return best.config, reason


def recomputations() -> list[str]:
    """Return the words of all recomputations, the least of it first."""
    return [word for kind in LEAST_FIRST for word in words_of(RecomputeFacts, kind)]


# A cold compiler's seconds, and a compiled step's speed over an eager one's: of the default model on a CPU, whose eager
# FLOP/s are given too (benchmarks/results/compile_zen4_2cores_202611.md), and of the first steps on an H200
# (hopper_h200.json). Deep models, compiled block by block, take and gain less: they repay it after as many steps.
COMPILE_SECONDS: Final = {"cpu": 61.0, "gpu": 18.0}
COMPILED_SPEEDUP: Final = 1.47
EAGER_CPU_FLOPS: Final = 42e9  # a second, of one thread; more threads shorten compiling alike


def with_compilation(config: RunConfig, plan: Plan, *, on_cpu: bool) -> tuple[RunConfig, str | None]:
    """Return the config without compilation, and the reason, where the choice is left to the plan and saves nothing.

    No speed that is measured at the start of a run decides: each of its starts chooses the same.
    """
    if not config.compilation.falls_back:
        return config, None
    seconds = COMPILE_SECONDS["cpu" if on_cpu else "gpu"]
    if plan.horizon.seconds is not None and plan.horizon.is_of_time:
        saved = plan.horizon.seconds * (1 - 1 / COMPILED_SPEEDUP)
    elif on_cpu:
        saved = plan.horizon.flops / plan.batch.num_ranks / EAGER_CPU_FLOPS * (1 - 1 / COMPILED_SPEEDUP)
    elif plan.speed is not None:
        saved = plan.horizon.steps * plan.speed.step_seconds * (COMPILED_SPEEDUP - 1)
    else:
        return config, None
    if saved >= seconds:
        return config, None
    (without, *_) = words_of(CompileFacts, lambda facts: not facts.compiles)
    why = f"compiling takes about {seconds:.0f} s and would save {max(1.0, saved):.0f} s of this budget"
    chosen = with_words(config, [without])
    return chosen, f"compile={config.compile.word}: {chosen.compile.word}, as {why}; its other options always compile"


def advice(config: RunConfig, plan: Plan, setting: Setting, planned: Planned) -> Advice:
    """Return a line for each way in which a run does not fit or finish, and the changes with which it does."""
    if plan.fits is False and plan.memory is not None:
        sizes = f"{plan.memory.total / 1e9:.1f} GB at the peak, {(plan.device_bytes or 0) / 1e9:.1f} GB on the device"
        found = [_line(one, plan) for one in remedies(config, planned)]
        found = found or ["no change that was tried fits: a smaller model, another strategy or schedule is needed"]
        return Advice((f"does not fit: {sizes}", *found), is_possible=False)
    unfinished = _unfinished(plan, planned)
    lines = [*unfinished]
    largest = largest_micro_batch(setting, plan.batch) if plan.fits else None
    if largest and largest.sequences_per_micro_step > plan.batch.sequences_per_micro_step:
        lines.insert(0, f"a larger micro batch fits too: {MICRO_BATCH}={largest.sequences_per_micro_step}")
    return Advice(tuple(lines), is_possible=not unfinished)


def remedies(config: RunConfig, planned: Planned) -> list[Candidate]:
    """Return the cheapest changes with which a run fits: on its devices, and on the fewest more; each is planned.

    A shorter context is the last resort.
    """
    savings = _savings(config)
    together = (*{_group(word): word for word in savings}.values(), f"{MICRO_BATCH}=auto")
    for setting_of in (setting_if_known, setting_on_paper):  # what must be measured, only where nothing else fits
        fitting = partial(_first_fitting, config, planned=planned, setting_of=setting_of)
        on_these = [*_few_savings(config, savings, setting_of), together]
        for choices in ((on_these, _more_devices(config)), (_shorter_contexts(config, together),)):
            if found := ranked(map(fitting, choices)):
                return found
    return []


def _few_savings(config: RunConfig, savings: list[str], setting_of: SettingOf) -> Iterator[Words]:
    """Yield the savings, or pairs of them, that fit, the cheapest first; a smaller micro batch only where needed."""
    for number in (0, 1, 2):
        tried: list[Candidate | None] = []
        for words in combinations(savings, number):
            if len({_group(word) for word in words}) == number:
                as_typed = weighed(config, words, setting_of=setting_of)
                needs_less = as_typed is None or not as_typed.fits
                smaller = (*words, f"{MICRO_BATCH}=auto")
                tried.append(weighed(config, smaller, setting_of=setting_of) if needs_less else as_typed)
        yield from (one.words for one in ranked(tried))


def _shorter_contexts(config: RunConfig, together: Words) -> Iterator[Words]:
    context = config.batch.context_tokens // 2
    while context >= LEAST_CONTEXT:
        yield f"batch.context_tokens={context}", f"{MICRO_BATCH}=auto"
        yield f"batch.context_tokens={context}", *together
        context //= 2


def _first_fitting(
    config: RunConfig, choices: Iterable[Words], *, planned: Planned, setting_of: SettingOf
) -> Candidate | None:
    for words in choices:
        found = weighed(config, words, setting_of=setting_of)
        if found and found.fits and (plan := planned(_typed(found))) and plan.fits:
            return found
    return None


def _more_devices(config: RunConfig) -> Iterator[Words]:
    """Yield the words of twice as many devices or more, over which the model is cut."""
    num_devices, savings = max(NODE, 2 * config.num_ranks), _savings(config)
    shards = [word for word in savings if word.startswith(f"{ModelSpread.group}=")][:1]
    recompute = [word for word in savings if word.startswith(f"{RecomputeFacts.group}=")][-1:]
    while num_devices <= MOST_DEVICES:
        devices = [*words_of_devices(config, num_devices), *shards]
        least = config.batch.context_tokens * num_devices
        if config.batch.tokens_per_step % least:
            devices.append(f"batch.tokens_per_step={-(-config.batch.tokens_per_step // least) * least}")
        yield (*devices, f"{MICRO_BATCH}=auto")
        if recompute:
            yield (*devices, *recompute, f"{MICRO_BATCH}=auto")
        num_devices *= 2


def _savings(config: RunConfig) -> list[str]:
    """Return the settings and options for less memory that are not chosen yet."""
    loss, recompute = config.facts(LossFacts) or LossFacts(), config.facts(RecomputeFacts) or RecomputeFacts()
    found: list[str] = []
    if not recompute.keeps_least:
        found += [word for word in recomputations()[1:] if word.partition("=")[2] != config.recompute.word]
    if not loss.in_chunks:
        found += words_of(LossFacts, lambda facts: facts.in_chunks)[:1]
    found += [f"{config.spread.group}.{word}" for word in config.spread.savings]
    if config.num_ranks > 1 and not config.spread.cuts_parameters:
        found += words_of(ModelSpread, lambda spread: spread.shards_most and spread.takes_many)
    if not config.optimizer_cpu_offload and config.cluster.device is not None:
        found.append(f"{CPU_OFFLOAD}=true")
    return found


def _group(word: str) -> str:
    """Return the place of a choice: an option's group, or a setting."""
    return word.partition("=")[0]


def _typed(one: Candidate) -> Words:
    """Return a candidate's words, its micro batch as a number."""
    size = one.batch.sequences_per_micro_step
    return tuple(f"{MICRO_BATCH}={size}" if word == f"{MICRO_BATCH}=auto" else word for word in one.words)


def _line(one: Candidate, plan: Plan) -> str:
    where = f" on {format_count(one.batch.num_ranks, 'device')}" if one.batch.num_ranks != plan.batch.num_ranks else ""
    return f"fits{where} with {' '.join(_typed(one))}"


def _unfinished(plan: Plan, planned: Planned) -> list[str]:
    """Return the share of the work that a budget of time is enough for, and the settings with which the run ends."""
    run, asked = plan.horizon, plan.horizon.most_steps
    if plan.speed is None or asked is None or _finishes(plan):
        return []
    whole = planned(WITHOUT_TIME)
    hours = (plan.done.spent(run.time_limit) + ((whole and whole.seconds) or 0.0)) / SECONDS_PER_HOUR
    amount = hours if run.limited_by == "hours" else hours * plan.batch.num_ranks * (plan.usd_per_gpu_hour or 0)
    tries = [
        f"budget.{run.limited_by}={math.ceil(amount * MARGIN * 100) / 100:g}",
        f"budget.tokens={format_at_most(run.tokens / MARGIN)}",
    ]
    enough = [word for word in tries if (tried := planned((word,))) and _finishes(tried)]
    lines = [
        f"does not finish: budget.{run.limited_by} ends it after {run.steps / asked:.0%} of the "
        f"{format_quantity(asked * plan.batch.tokens_per_step)} tokens"
    ]
    return [*lines, f"finishes with {', or with '.join(enough)}"] if enough else lines


def _finishes(plan: Plan) -> bool:
    run = plan.horizon
    return run.seconds is None or run.most_steps is None or run.most_steps <= run.steps
