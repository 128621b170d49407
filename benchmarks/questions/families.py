"""Every causal family of transformers by its default config: a plan's parameters and FLOPs against torch's own counts.

    python -m benchmarks.questions.families [KIND ...] > benchmarks/results/families.md

Each is planned in its own process, as `lmtrain plan --hf` does, on the meta device. FLOPs of a sequence are compared
with three times those that FlopCounterMode finds in a forward pass. That has no formula for grouped products of experts
and for scans: torch's share is below 1 in families with these. It is above 1 where
a class adds tokens to the input, such as a learned prompt, which a plan leaves out.
"""

import json
import multiprocessing
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CONTEXT = 512
SECONDS = 120  # of one family
COLUMNS = ("family", "parameters", "counted by torch", "FLOPs of a token", "torch's share", "plan fits H100", "seconds")


def model_config(kind: str) -> Any:
    """Return a family's default config, as a decoder."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind)
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def counted(kind: str) -> tuple[int, float]:
    """Return the parameters, and the FLOPs of a token in three forward passes, of transformers' own class."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config(kind), dtype=torch.bfloat16)
        num_parameters = sum(one.numel() for one in model.parameters())
        mask = torch.ones(1, 1, CONTEXT, CONTEXT, dtype=torch.bool)
        try:
            with FlopCounterMode(display=False) as counter:
                model(torch.zeros(1, CONTEXT, dtype=torch.long), use_cache=False, attention_mask=mask)
        except Exception:  # noqa: BLE001  a class that reads values, or takes no mask
            return num_parameters, float("nan")
    return num_parameters, 3 * counter.get_total_flops() / CONTEXT


def row(kind: str) -> tuple[str, ...]:
    """Return a family's row."""
    from lmtrain.run.compose.start_options import class_words
    from lmtrain.run.planning.plan import planned_runs

    with TemporaryDirectory() as folder:
        content = json.loads(model_config(kind).to_json_string(use_diff=True))
        Path(folder, "config.json").write_text(json.dumps({**content, "model_type": kind}))
        words = ["cluster=h100_8x", "strategy=fsdp", "compile=none", f"batch.context_tokens={CONTEXT}"]
        words += [f"batch.tokens_per_step={CONTEXT * 8}", "budget.steps=10", f"run.cache={folder}/cache"]
        began = time.process_time()
        (run,) = planned_runs([*class_words(folder, {"batch.context_tokens": ""}), *words])
    seconds, shape, flops = time.process_time() - began, run.plan.shape, run.plan.flops_per_token.palm
    theirs, of_token = counted(kind)
    same = "equal" if theirs == shape.num_parameters else f"{theirs:,}"
    share = "" if of_token != of_token else f"{of_token / flops:.4f}"
    fits = "yes" if run.plan.fits else "no"
    return kind, f"{shape.num_parameters:,}", same, f"{flops:.4g}", share, fits, f"{seconds:.0f}"


def put_row(kind: str, found: Any) -> None:
    """Put a family's row, or the reason why it has none, into the queue."""
    warnings.filterwarnings("ignore")
    try:
        found.put(row(kind))
    except Exception as problem:  # noqa: BLE001  of any class
        found.put((kind, " ".join(str(problem).split())[:120].replace("|", "/"), *[""] * 5))


def main() -> None:
    """Print the table."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    import_module("torch")  # before the processes fork
    fork = multiprocessing.get_context("fork")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for kind in sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        found: Any = fork.Queue()
        process = fork.Process(target=put_row, args=(kind, found))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
        cells = (kind, f"not counted in {SECONDS} s", *[""] * 5) if found.empty() else found.get()
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
