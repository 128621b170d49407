"""Our two loops at a case of the measurements, each in a process of its own: what it says of a few turns of steps.

The processes are those of train_step: they take turns, tell device seconds of a step (CPU seconds on a CPU), the time
to the first step, peak memory and host syncs.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.hopper.cases import Case, composed, last_of_each, meta_model
from benchmarks.harness.hopper.rows import Bench, Row
from benchmarks.harness.train_step.driver import Contestant, measure
from benchmarks.harness.train_step.task import Task
from lmtrain.accounting.model.flops import flops_per_token

WORDS_FILE: Final = "words.json"
LOG_EVERY_STEPS: Final = 10
WHOLE_STEP_TOKENS: Final = 524_288
FACTS: Final = ("peak_bytes", "host_syncs", "first_step_seconds", "num_parameters", "given")
BARE, TRAINER = "benchmarks.peers.hopper.bare", "benchmarks.peers.hopper.full_trainer"


def run_words(
    case: Case, config: dict[str, Any], *, bench: Bench, data: Path, steps: int, is_whole_step: bool = False
) -> list[str]:
    """Return the overrides of a run on made-up tokens: one micro-batch a step, or several that make a whole one."""
    batch = config["batch"]
    tokens_per_step = batch["micro_batch_sequences"] * batch["context_tokens"]
    if is_whole_step:
        tokens_per_step = 2 * tokens_per_step if bench.is_toy else WHOLE_STEP_TOKENS
    words = [
        *case.overrides(is_toy=bench.is_toy),
        "data=synthetic",
        f"data.folder.root={data}",
        "tokenizer=byte_level",
        f"tokenizer.vocab_size={config['model']['vocab_size']}",
        "schedule=constant",
        "scaling=none",
        f"batch.tokens_per_step={tokens_per_step}",
        f"trainer.accelerator={'gpu' if bench.device.type == 'cuda' else 'cpu'}",
        "budget=steps",
        f"budget.steps={steps}",
        f"run.log_every_steps={LOG_EVERY_STEPS}",
        *(["cluster.peak_flops=1e12", "trainer.cpu_threads=1"] if bench.device.type == "cpu" else []),
    ]
    return last_of_each(words)


def compare(
    case: Case,
    more: list[str],
    names: list[str],
    *,
    bench: Bench,
    scratch: Path,
    rounds: int,
    turn_steps: int,
    warm_up_steps: int = 5,
    is_whole_step: bool = False,
    count_syncs: bool = False,
) -> list[Row]:
    """Let loops take turns at a case with some more overrides, and return a row for each."""
    scratch.mkdir(parents=True, exist_ok=True)
    toy_case = Case(case.name, (*case.words, *more), case.toy)
    config = composed(toy_case, is_toy=bench.is_toy)
    data = scratch.parent / "data"
    words = run_words(toy_case, config, bench=bench, data=data, steps=10**6, is_whole_step=is_whole_step)
    (scratch / WORDS_FILE).write_text(json.dumps(words))
    task = task_of(config, bench, scratch, turn_steps=turn_steps, warm_up_steps=warm_up_steps)
    tokens_per_step = int(dict(word.split("=", 1) for word in words)["batch.tokens_per_step"])

    def tell(line: str) -> None:
        print(f"{case.name}: {line}", file=sys.stderr, flush=True)

    found = measure(names, task, rounds=rounds, tell=tell, count_syncs=count_syncs)
    shape = meta_model(config).shape()
    palm = flops_per_token(shape, task.context_tokens)
    return [
        _row(one, case, words, bench, tokens=tokens_per_step)
        | {"flops_per_token_palm": palm.palm, "flops_per_token_causal": palm.causal}
        for one in found
    ]


def task_of(config: dict[str, Any], bench: Bench, scratch: Path, *, turn_steps: int, warm_up_steps: int = 5) -> Task:
    """Return what the loops' protocol wants to know; the model itself comes from the words."""
    return Task(
        num_layers=1,
        num_heads=1,
        vocab_size=config["model"]["vocab_size"],
        context_tokens=config["batch"]["context_tokens"],
        num_sequences=config["batch"]["micro_batch_sequences"],
        device="cuda" if bench.device.type == "cuda" else "cpu",
        precision="fp32" if bench.is_toy else "bf16_mixed",
        is_compiled=not bench.is_toy,
        threads=1 if bench.device.type == "cpu" else 8,
        warm_up_steps=warm_up_steps,
        turn_steps=turn_steps,
        max_steps=10**6,
        data_root=str(scratch.parent / "data"),
        tokens_file="",
        peers=bench.peers,
        scratch=str(scratch),
    )


def _row(one: Contestant, case: Case, words: list[str], bench: Bench, *, tokens: int) -> Row:
    row: Row = {"model": case.name, "loop": one.name.rpartition(".")[2], "words": words}
    if not one.is_running or not one.turns:
        return row | {"not_measured": one.facts.get("skipped", "no turn was taken")}
    clock = "device_seconds" if bench.device.type == "cuda" else "cpu_seconds"
    seconds = [turn[clock] for turn in one.turns]
    return row | {
        "step_seconds": seconds,
        "tokens_per_second": tokens / statistics.median(seconds),
        **{name: one.facts[name] for name in FACTS if name in one.facts},
    }
