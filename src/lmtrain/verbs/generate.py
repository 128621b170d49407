"""`lmtrain generate RUN`: continue a text with the newest whole checkpoint of a run, on this machine."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lmtrain.accounting.batches import plan_batches
from lmtrain.composition.command_line.arguments import ALLOW_TARGET, ALLOW_TARGET_OPTION
from lmtrain.composition.stored_runs.checkpoint_source import checked_part, find_job
from lmtrain.errors import ConfigurationError


def generate(words: list[str], *, program: str = "lmtrain generate") -> int:
    """Print a prompt and what the run's model continues it with."""
    arguments = _parser(program).parse_args(words)
    text = arguments.prompt if arguments.prompt != "-" else sys.stdin.read()
    continued = continue_text(
        arguments.run,
        prompt=text,
        num_new_tokens=arguments.num_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        seed=arguments.seed,
        weights=arguments.weights,
        allowed=arguments.allow_target,
    )
    print(json.dumps({"prompt": text, "text": continued}) if arguments.json else text + continued)
    return 0


def continue_text(
    run: Path,
    *,
    prompt: str,
    num_new_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    weights: Literal["raw", "ema"] = "raw",
    allowed: Sequence[str] = (),
) -> str:
    """Return the text that follows `prompt`; an empty prompt begins a new document.

    `allowed` are the targets that the command line allows beside ours.

    Raises:
        ConfigurationError: `run` is not the folder of a run with a checkpoint.
    """
    job = find_job(run, key="RUN")
    import torch

    from lmtrain.composition.execution.build import build_model
    from lmtrain.inference.generate import generate as generate_tokens
    from lmtrain.models.attention.sdpa import sdpa
    from lmtrain.tokenizers.loading import load_tokenizer
    from lmtrain.training.checkpointing.checkpoints import newest_whole
    from lmtrain.training.checkpointing.weights import load_weights
    from lmtrain.training.module import materialize

    checkpoint, _ = newest_whole(run / "checkpoints")
    if checkpoint is None:
        msg = f"{run} has no checkpoint yet; train it first, or name another run."
        raise ConfigurationError(msg)
    batch = plan_batches(checked_part(job, "batch").build())
    tokenizer = load_tokenizer(run / "tokenizer")
    node = checked_part(job, "model", allowed=allowed)
    model = build_model(node, tokenizer=tokenizer, batch=batch, attention=sdpa if "attention" in node else None)
    model = materialize(model, device=torch.device("cpu"), seed=0)  # whatever it was trained on, sdpa runs here
    load_weights(model, checkpoint.path, weights)
    ids = tokenizer.encode(prompt) or [tokenizer.end_of_text_id]
    tokens = generate_tokens(
        model,
        torch.tensor([ids]),
        num_new_tokens=num_new_tokens,
        temperature=temperature,
        top_k=top_k,
        generator=torch.Generator().manual_seed(seed),
    )
    return tokenizer.decode(tokens[0, len(ids) :].tolist())


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description="Continue a text with a run's newest checkpoint.")
    parser.add_argument("run", type=Path, help="the run's folder: runs/NAME")
    parser.add_argument("--prompt", default="", help="text to continue; - reads it from standard input")
    parser.add_argument("--num-new-tokens", type=int, default=200, help="tokens to write (200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 always takes the likeliest token (0.8)")
    parser.add_argument("--top-k", type=int, default=50, help="sample among so many likeliest tokens (50)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (0)")
    parser.add_argument("--weights", choices=("raw", "ema"), default="raw", help="or their moving average (raw)")
    parser.add_argument(ALLOW_TARGET, **ALLOW_TARGET_OPTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
