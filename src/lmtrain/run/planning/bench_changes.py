"""Changes of a config for shorter steps on this machine: by its options, and by its timed parts."""

from collections.abc import Sequence
from typing import Any, Final

from lmtrain.accounting.observed.step_changes import Change
from lmtrain.accounting.observed.step_parts import LARGE_OPTIMIZER, WORTH_TELLING, Bench
from lmtrain.accounting.options.parts import AttentionFacts, CompileFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_count
from lmtrain.run.compose.group_options import choosing_precisions, words_of
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig

UNKNOWN: Final = 0.1  # of a step: a change's assumed saving where arithmetic gives none


def changes(config: RunConfig, found: Bench, *, can_compile: bool, free_threads: int) -> list[Change]:
    """Return the changes, the largest expected gain first; `free_threads` are the run's idle ones."""
    named = [*_switches(config), *_choices(config, can_compile=can_compile), *_waits(config, found)]
    if free_threads and config.trainer.cpu_threads is not None:
        named.append(
            Change(
                words=("trainer.cpu_threads=null",), why=f"unused: {format_count(free_threads, 'thread')} of this CPU"
            )
        )
    named += [*_batches(config, found), *_of_optimizer(config, found, can_compile=can_compile)]
    return sorted(named, key=lambda change: -(UNKNOWN if change.most_saved is None else change.most_saved))


def _switches(config: RunConfig) -> list[Change]:
    switches = (
        ("trainer.detect_anomaly", config.trainer.detect_anomaly, "every operation looks for NaN"),
        ("deterministic", config.deterministic, "some operations have a faster version whose result varies"),
    )
    return [Change(words=(f"{key}=false",), why=why) for key, is_on, why in switches if is_on]


def _choices(config: RunConfig, *, can_compile: bool) -> list[Change]:
    """Return chosen options with a usually faster alternative."""
    setting, found = planned_setting(config), list[Change]()
    for word in choosing_precisions():
        chosen = planned_setting(with_words(config, [word])).precision.bytes_of
        if setting.precision.bytes_of.activations > chosen.activations:
            found.append(Change(words=(word,), why=f"products in {chosen.matmul}"))
    if setting.recompute.recomputes:
        plain = words_of(RecomputeFacts, lambda other: other.keeps_all)
        found += _each(plain, "no activation is computed twice; takes more memory")
    if not setting.attention.chooses:
        place: dict[str, Any] = {"on_gpu": False, "is_compiled": setting.is_compiled}
        choosing = words_of(AttentionFacts, lambda other: other.chooses, **place)
        found += _each(choosing, "the kernel that is fastest on this device")
    if setting.spread.reduces_alone:
        alone = words_of(ModelSpread, lambda other: not other.reduces_alone and other.takes_many)
        found += _each(alone, "one process has nothing to share")
    if can_compile and not setting.is_compiled:
        compiling = words_of(CompileFacts, lambda other: other.falls_back)
        found += _each(compiling, "compiles for a minute or two, once", compiles=True)
    return found


def _each(words: Sequence[str], why: str, *, compiles: bool | None = None) -> list[Change]:
    return [Change(words=(word,), why=why, compiles=compiles) for word in words]


def _waits(config: RunConfig, found: Bench) -> list[Change]:
    shares, told = found.parts.shares(), []
    if shares["data"] > WORTH_TELLING:
        num = max(2, 2 * int(config.data.get("num_workers") or 0))
        told.append(
            Change(
                words=(f"data.num_workers={num}",),
                why="batches are read beside training",
                most_saved=shares["data"],
                compiles=False,
            )
        )
    if shares["host"] > WORTH_TELLING and config.run.log_every_steps < 10:  # the default
        told.append(
            Change(
                words=("run.log_every_steps=10",),
                why="metrics are fetched and written less often",
                most_saved=shares["host"],
                compiles=False,
            )
        )
    return told


def _batches(config: RunConfig, found: Bench) -> list[Change]:
    """Return a wider micro batch, by taking the micro-steps of a step together or by a larger step."""
    batch = found.batch
    if batch.accumulation_micro_steps > 1:
        fewer = next(num for num in range(2, batch.accumulation_micro_steps + 1) if not _left(batch, num))
        width = batch.micro_batch_sequences * fewer
        words = (f"batch.micro_batch_sequences={width}",)
        return [Change(words=words, why="more at a time keeps the device busier; takes more memory")]
    shares = found.parts.shares()
    fixed = shares["optimizer"] + shares["host"]
    words = [f"batch.tokens_per_step={2 * batch.tokens_per_step}"]
    if config.batch.micro_batch_sequences is not None:
        words.append(f"batch.micro_batch_sequences={2 * batch.micro_batch_sequences}")
    why = "half as many steps for the same tokens, each with more to learn from"
    return [Change(words=tuple(words), why=why, most_saved=fixed / 2 if fixed > WORTH_TELLING else None)]


def _left(batch: Any, num: int) -> int:
    return batch.accumulation_micro_steps % num


def _of_optimizer(config: RunConfig, found: Bench, *, can_compile: bool) -> list[Change]:
    share = found.parts.shares()["optimizer"]
    if not can_compile or share <= LARGE_OPTIMIZER or config.optimizer.get("compile_update") is not False:
        return []
    words = ("optimizer.compile_update=true",)
    return [Change(words=words, why="the optimizer's arithmetic in fewer passes", most_saved=share / 2)]
