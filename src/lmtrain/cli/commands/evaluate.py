"""`lmtrain evaluate MODEL`: bits per byte of text, CORE, chat tasks and those of lm-eval, each with its noise."""

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lmtrain.cli.commands.evaluate_input import evaluation_parser, read_input, require_flags
from lmtrain.cli.commands.model_flags import read_model, require_model
from lmtrain.errors import EXIT_DONE
from lmtrain.json_output import print_json

if TYPE_CHECKING:
    from lmtrain.inference.loaded_model import LoadedModel

# The settings that are kept with a score, by the first part of its name.
SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "evaluation": ("precision",),
    "core": ("precision", "max_items"),
    "chat": ("precision", "max_items", "num_new_tokens"),
    "lm_eval": ("precision", "max_items", "num_new_tokens", "num_shots", "chat_template"),
    "answers": ("precision", "num_new_tokens"),
}


def evaluate(words: list[str], *, program: str = "lmtrain evaluate") -> int:
    """Score a model and print a line for each score; a run's scores are kept with it and sent to MLflow."""
    asked = evaluation_parser(program).parse_args(words)
    require_flags(asked)
    require_model(asked)
    wanted = read_input(asked)
    loaded = read_model(asked)
    from lmtrain.cli.commands.evaluate_scores import scores_of

    scores: dict[str, dict[str, Any]] = {}
    for found in scores_of(asked, loaded, wanted):
        if not isinstance(found, str):
            name, score = found
            scores[_named(name, asked.weights)] = {**score, "settings": _settings_of(asked, name)}
        elif not asked.json:
            print(found, flush=True)
    _keep(loaded, scores, is_silent=asked.json)
    if asked.json:
        print_json({"model": loaded.name, "scores": scores})
    return EXIT_DONE


def _named(name: str, weights: str) -> str:
    """Return a score's name; that of averaged weights stands next to that of the weights, as in validation."""
    place, _, last = name.rpartition("/")
    return name if weights == "raw" else f"{place}/{weights}_{last}"


def _settings_of(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    return {flag: getattr(asked, flag) for flag in SETTINGS[name.partition("/")[0]]}


def _keep(loaded: "LoadedModel", scores: Mapping[str, dict[str, Any]], *, is_silent: bool) -> None:
    """Add a run's scores to its folder, its curves and MLflow."""
    if (origin := loaded.origin) is None:
        return
    from lmtrain.tracking.scores import keep_scores, scores_file

    renamed, problem = keep_scores(origin.run, step=origin.step, tokens=origin.tokens, scores=scores)
    if not is_silent:
        print(f"Kept in {scores_file(origin.run, origin.step)}")
        for name, given in renamed.items():
            print(f"as {given}: {name} there is of another text or of other settings")
    if problem:
        print(problem, file=sys.stderr)
