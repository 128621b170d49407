"""`lmtrain evaluate MODEL`: bits per byte of text, CORE, chat tasks and those of lm-eval, each with its noise."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtrain.cli.commands.evaluating.flags import evaluation_parser, require_flags, settings_of
from lmtrain.cli.commands.evaluating.input import read_input
from lmtrain.cli.commands.model_flags import read_model, require_model
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.run.compose.flag_parser import UNKNOWN

if TYPE_CHECKING:
    from lmtrain.inference.loaded_model import LoadedModel


def evaluate(words: list[str], *, program: str = "lmtrain evaluate") -> int:
    """Score a model and print a line for each score; a run's scores are kept with it and sent to MLflow.

    Raises:
        ConfigurationError: Wrong flags, or no model there.
        DataError: The text, the data or the bundle is missing or damaged.
        EnvironmentProblem: A package of an extra is missing.
    """
    parser = evaluation_parser(program)
    asked, more = parser.parse_known_args(words)
    _require_one(asked.run, more)
    if more:
        parser.error(UNKNOWN + " ".join(more))
    require_flags(asked)
    require_model(asked)
    wanted = read_input(asked)
    loaded = read_model(asked)
    from lmtrain.cli.commands.evaluating.scores import scores_of

    scores = {
        _named(name, asked.weights): {**score, "settings": settings_of(asked, name)}
        for name, score in scores_of(asked, loaded, wanted)
    }
    if asked.json:
        print(json.dumps({"model": loaded.name, "scores": scores}))
    _keep(loaded, scores, is_silent=asked.json)
    return EXIT_DONE


def _named(name: str, weights: str) -> str:
    """Return a score's name: an average's beside that of the weights themselves, as validation names both."""
    place, _, last = name.rpartition("/")
    return name if weights == "raw" else f"{place}/{weights}_{last}"


def _require_one(run: Path, more: list[str]) -> None:
    """Refuse several models: one is scored at a time, and runs are compared by another verb."""
    if more and all(Path(word).exists() for word in more):
        runs = [str(run), *more]
        each = " and ".join(f"`lmtrain evaluate {shlex.quote(one)}`" for one in runs)
        raise ConfigurationError(
            f"lmtrain evaluate scores one model at a time: write {each}, or `lmtrain compare {shlex.join(runs)}` "
            "for the losses of their trainings."
        )


def _keep(loaded: "LoadedModel", scores: Mapping[str, dict[str, Any]], *, is_silent: bool) -> None:
    """Add a run's scores to its folder, its curves and MLflow."""
    if (origin := loaded.origin) is None:
        return
    from lmtrain.tracking.scores import keep_scores, scores_file

    kept = keep_scores(origin.run, step=origin.step, tokens=origin.tokens, scores=scores)
    if not is_silent:
        print(f"Kept in {scores_file(origin.run, origin.step)}")
        for name, given in kept.names.items():
            print(f"as {given}: {name} there is of another text or of other settings")
    if kept.problem:
        print(kept.problem, file=sys.stderr)
