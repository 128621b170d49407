"""The flags that commands share: the model and its device, sampling, the form of the output."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import ALLOW_TARGET, ALLOW_TARGET_OPTION

if TYPE_CHECKING:
    from lmtrain.inference.loaded_model import LoadedModel
    from lmtrain.inference.sampling import Sampling


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model, its weights and its device."""
    parser.add_argument("run", type=Path, help="a run, a checkpoint, an imported or a Hugging Face folder")
    add_weights(parser)
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (auto: an accelerator if there is one)")


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add the choice of weights, and the targets that a config may name."""
    parser.add_argument("--weights", choices=("raw", "ema"), default="raw", help="or their moving average (raw)")
    parser.add_argument(ALLOW_TARGET, **ALLOW_TARGET_OPTION)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_sampling(parser: argparse.ArgumentParser, *, num_new_tokens: int) -> None:
    """Add the settings of sampling, and the length."""
    add = parser.add_argument
    add("--num-new-tokens", type=int, default=num_new_tokens, help=f"tokens to write at most ({num_new_tokens})")
    add("--temperature", type=float, default=0.8, help="0 always takes the likeliest token (0.8)")
    add("--top-k", type=int, default=50, help="sample from the k likeliest tokens; 0: from all (50)")
    add("--top-p", type=float, default=1.0, help="from the fewest tokens with this probability together (1)")
    add("--min-p", type=float, default=0.0, help="from those with this share of the likeliest's probability (0)")
    add("--repetition-penalty", type=float, default=1.0, help="on tokens of the text so far (1: none)")
    add("--presence-penalty", type=float, default=0.0, help="on tokens written so far, once (0)")
    add("--frequency-penalty", type=float, default=0.0, help="on tokens written so far, each time (0)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    add("--seed", type=int, default=0, help="of the sampling (0)")


def read_sampling(asked: argparse.Namespace) -> "Sampling":
    """Return the typed settings."""
    from lmtrain.inference.sampling import Sampling

    if "" in asked.stop:
        raise ConfigurationError("--stop: must not be empty; leave it out.")
    names = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    settings: dict[str, Any] = {name: getattr(asked, name) for name in names} | {"top_k": asked.top_k or None}
    return Sampling(**settings)


def require_model(asked: argparse.Namespace) -> None:
    """Refuse a folder without a run, a checkpoint or a model, before torch is imported."""
    from lmtrain.run.stored_runs.find_run import require_source

    if not (asked.run / "config.json").is_file():
        require_source(asked.run, key="RUN")


def read_model(asked: argparse.Namespace) -> "LoadedModel":
    """Load the model."""
    require_model(asked)
    from lmtrain.run.stored_runs.loaded_models import model_to_run

    return model_to_run(asked.run, weights=asked.weights, device=asked.device, allowed=asked.allow_target)
