"""The shared flags of text generation: the model, its device, and its sampling."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import ALLOW_TARGET, ALLOW_TARGET_OPTION

if TYPE_CHECKING:
    from lmtrain.inference.loaded_model import LoadedModel
    from lmtrain.inference.sampling import Sampling


def add_model(parser: argparse.ArgumentParser) -> None:
    """Let a parser ask for a model."""
    parser.add_argument("run", type=Path, help="a run, a checkpoint, an imported or a Hugging Face folder")
    parser.add_argument("--weights", choices=("raw", "ema"), default="raw", help="or their moving average (raw)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ...; an accelerator where there is one (auto)")
    parser.add_argument(ALLOW_TARGET, **ALLOW_TARGET_OPTION)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Let a parser ask for the settings of the next token's choice."""
    add = parser.add_argument
    add("--temperature", type=float, default=0.8, help="0 always takes the likeliest token (0.8)")
    add("--top-k", type=int, default=50, help="sample among so many likeliest tokens; 0: among all (50)")
    add("--top-p", type=float, default=1.0, help="among the fewest tokens of this probability together (1)")
    add("--min-p", type=float, default=0.0, help="among those with this share of the likeliest's (0)")
    add("--repetition-penalty", type=float, default=1.0, help="on tokens of the text so far (1: none)")
    add("--presence-penalty", type=float, default=0.0, help="on tokens written so far, once (0)")
    add("--frequency-penalty", type=float, default=0.0, help="on tokens written so far, each time (0)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    add("--seed", type=int, default=0, help="of the sampling (0)")


def read_sampling(arguments: argparse.Namespace, **changed: Any) -> "Sampling":
    """Return the typed settings.

    Raises:
        ConfigurationError: One of them cannot be, or would change nothing.
    """
    from lmtrain.inference.sampling import Sampling

    if "" in arguments.stop:
        raise ConfigurationError("--stop '' has no text and ends nothing; leave it out.")
    asked: dict[str, Any] = {
        "temperature": arguments.temperature,
        "top_k": arguments.top_k or None,
        "top_p": arguments.top_p,
        "min_p": arguments.min_p,
        "repetition_penalty": arguments.repetition_penalty,
        "presence_penalty": arguments.presence_penalty,
        "frequency_penalty": arguments.frequency_penalty,
    }
    return Sampling(**{**asked, **changed})


def require_model(arguments: argparse.Namespace) -> None:
    """Refuse a wrong folder, without torch.

    Raises:
        ConfigurationError: Neither a run, nor a checkpoint, nor a model's folder.
    """
    from lmtrain.run.stored_runs.find_run import require_source

    if not (arguments.run / "config.json").is_file():
        require_source(arguments.run, key="RUN")


def read_writer(arguments: argparse.Namespace) -> "LoadedModel":
    """Load the typed model for one text at a time; raises as `read_model` does."""
    loaded = read_model(arguments)
    from lmtrain.inference.loaded_model import use_fitting_threads

    use_fitting_threads(loaded.model)
    return loaded


def read_model(arguments: argparse.Namespace) -> "LoadedModel":
    """Load the typed model; a wrong folder is refused before torch is imported."""
    require_model(arguments)
    from lmtrain.run.stored_runs.loaded_models import model_to_run

    return model_to_run(
        arguments.run, weights=arguments.weights, device=arguments.device, allowed=arguments.allow_target
    )
