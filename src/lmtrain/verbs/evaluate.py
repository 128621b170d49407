"""`lmtrain evaluate MODEL`: bits per byte of text, and the tasks of CORE, each with its noise."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmtrain.errors import EXIT_DONE, ConfigurationError, DataError
from lmtrain.report.score_lines import answers_head, answers_line, bits_line, core_line, core_notes, task_line
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.verbs.model_flags import add_model, read_model, require_model

if TYPE_CHECKING:
    from lmtrain.data.shards import Dataset
    from lmtrain.evaluation.answer_scores import Question
    from lmtrain.evaluation.core.bundle import CoreTask
    from lmtrain.evaluation.held_out import TextScore
    from lmtrain.inference.loaded_model import LoadedModel

BATCH_TOKENS: Final = 16_384
MADE: Final = "made_conversations"  # a source that keeps questions back

Scores = dict[str, dict[str, Any]]


def evaluate(words: list[str], *, program: str = "lmtrain evaluate") -> int:
    """Score a model and print a line for each score; a run's scores are kept with it and sent to MLflow.

    Raises:
        ConfigurationError: Wrong flags, or no model there.
        DataError: The text, the data or the bundle is missing or damaged.
    """
    asked = _parser(program).parse_args(words)
    _require_flags(asked)
    require_model(asked)
    wanted = _read(asked)
    loaded = read_model(asked)
    scores: Scores = {}
    for name, score in _scores(asked, loaded, wanted):
        scores[name] = score
    if asked.json:
        print(json.dumps({"model": loaded.name, "scores": scores}))
    _keep(loaded, scores, is_silent=asked.json)
    return EXIT_DONE


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """All that is scored, found and read before the model is loaded."""

    tasks: "tuple[CoreTask, ...]" = ()
    texts: tuple[tuple[str, str], ...] = ()  # name and text
    asked: "tuple[Question, ...]" = ()
    dataset: "Dataset | None" = None


def _require_flags(asked: argparse.Namespace) -> None:
    for flag in ("context_tokens", "batch_tokens", "max_items", "made", "num_new_tokens"):
        if (value := getattr(asked, flag)) is not None and value < 1:
            raise ConfigurationError(f"--{flag.replace('_', '-')} {value} is below 1; nearest valid: 1.")
    for flag in ("tasks", "max_items"):
        if getattr(asked, flag) and asked.core is None:
            raise ConfigurationError(f"--{flag.replace('_', '-')} is of --core FOLDER, which is not given; give it.")
    if asked.split and (asked.core or asked.text or asked.answers or asked.made) and asked.data is None:
        raise ConfigurationError(f"--split {asked.split} is of --data FOLDER, which is not given; give it.")


def _read(asked: argparse.Namespace) -> _Wanted:
    from lmtrain.data.shards import open_dataset
    from lmtrain.evaluation.core.bundle import read_bundle

    only = tuple(asked.tasks.split(",")) if asked.tasks else ()
    tasks = read_bundle(asked.core, only=only) if asked.core else []
    texts = [(str(path), _text(path)) for path in asked.text]
    questions = _questions(asked)
    data = asked.data or (None if tasks or texts or questions else _own_data(asked.run))
    return _Wanted(
        tasks=tuple(tasks),
        texts=tuple(texts),
        asked=tuple(questions),
        dataset=open_dataset(data) if data else None,
    )


def _questions(asked: argparse.Namespace) -> "list[Question]":
    from lmtrain.evaluation.answer_scores import Question
    from lmtrain.evaluation.question_file import read_questions

    questions = [one for path in asked.answers for one in read_questions(path)]
    if asked.made is not None:
        from lmtrain.composition.command_line.compose import compose_config
        from lmtrain.composition.nodes.node import Node

        source = Node("source", compose_config([f"source={MADE}"])["source"]).checked(()).build()
        questions += [
            Question([{"role": "user", "content": one.question}], one.answer, one.kind)
            for one in source.held_out(asked.made)
        ]
    return questions


def _text(path: Path) -> str:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as problem:
        raise DataError(f"--text {path} cannot be read: {problem.strerror}.") from problem
    except UnicodeDecodeError as problem:
        raise DataError(f"--text {path} is no UTF-8 text (byte {problem.start:,}); give plain text.") from problem
    if not text:
        raise DataError(f"--text {path} is empty; give it some text.")
    return text


def _own_data(path: Path) -> Path:
    """Return the prepared data of a run, whose held-out text is scored where nothing else is asked for."""
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    folder = RunFolder(run).read_identity().get("data")
    if not isinstance(folder, str):
        raise ConfigurationError(
            f"nothing to score: {path} does not say its data; give --data FOLDER, --text FILE or --core FOLDER."
        )
    if not Path(folder).is_dir():
        raise ConfigurationError(f"the data of {path} is no longer in {folder}; give --data FOLDER or --text FILE.")
    return Path(folder)


def _scores(asked: argparse.Namespace, loaded: "LoadedModel", wanted: _Wanted) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the metric and the facts of each score, printed as it comes."""
    import torch

    from lmtrain.composition.stored_runs.held_out_text import score_split, score_text

    def say(line: str) -> None:
        if not asked.json:
            print(line, flush=True)

    sizes = {"context_tokens": asked.context_tokens, "batch_tokens": asked.batch_tokens}
    device = next(loaded.model.parameters()).device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=asked.precision == "bf16"):
        if (dataset := wanted.dataset) is not None:
            split = asked.split or ("test" if "test" in dataset.splits else "validation")
            score = score_split(loaded, dataset, split, allowed=asked.allow_target, **sizes)
            say(bits_line(f"{split} split of {dataset.folder}", score.total, score.standard_error))
            yield f"evaluation/{split}/bits_per_byte", {**_bits(score), "data": dataset.manifest.fingerprint}
        for name, text in wanted.texts:
            score = score_text(loaded, text, **sizes)
            say(bits_line(name, score.total, score.standard_error))
            yield f"evaluation/{Path(name).stem}/bits_per_byte", {**_bits(score), "text": name}
        if wanted.asked:
            yield from _answer_scores(asked, loaded, wanted.asked, say)
        if wanted.tasks:
            yield from _core_scores(asked, loaded, wanted.tasks, say)


def _core_scores(
    asked: argparse.Namespace, loaded: "LoadedModel", tasks: "tuple[CoreTask, ...]", say: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    from lmtrain.evaluation.core.score import score_core

    core = score_core(
        loaded.model,
        tasks,
        encode=loaded.tokenizer.encode_batch,
        begin_id=loaded.first_id,
        max_items=asked.max_items,
        batch_tokens=asked.batch_tokens,
        told=lambda task: say(task_line(task)),
    )
    for line in (core_line(core), *core_notes(core)):
        say(line)
    for task in core.tasks:
        facts = {"accuracy": task.accuracy, "baseline": task.baseline, "num_items": task.num_items}
        yield f"core/{task.label}", {"score": task.centred, "standard_error": task.standard_error, **facts}
    yield "core/mean", {"score": core.core, "standard_error": core.standard_error, "num_tasks": len(core.tasks)}


def _answer_scores(
    flags: argparse.Namespace, loaded: "LoadedModel", asked: "tuple[Question, ...]", say: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    from lmtrain.evaluation.answer_scores import ALL, Answered, score_answers
    from lmtrain.inference.batch_answers import answer_all

    written = answer_all(loaded, [one.messages for one in asked], num_new_tokens=flags.num_new_tokens)
    answered = [Answered(one.text, one.finish_reason == "stop") for one in written]
    say(answers_head())
    for score in score_answers(asked, answered):
        say(answers_line(score))
        place = next(place for place, one in enumerate(asked) if score.kind in (one.kind, ALL))
        said = [{"asked": asked[place].messages[-1]["content"], "said": answered[place].text}]
        facts: dict[str, Any] = {"guess": score.guess, "ended": score.ended, "num_items": score.num_items}
        facts["samples"] = said if score.kind != ALL else []
        yield f"answers/{score.kind}", {"score": score.accuracy, "standard_error": score.standard_error, **facts}


def _bits(score: "TextScore") -> dict[str, Any]:
    total = score.total
    facts = {"nats_per_token": total.nats_per_token, "num_bytes": total.num_bytes, "num_tokens": total.num_tokens}
    return {"score": total.bits_per_byte, "standard_error": score.standard_error, **facts}


def _keep(loaded: "LoadedModel", scores: Mapping[str, dict[str, Any]], *, is_silent: bool) -> None:
    """Add a run's scores to its folder, its curves and MLflow."""
    if (origin := loaded.origin) is None:
        return
    from lmtrain.tracking.scores import keep_scores, scores_file

    problem = keep_scores(origin.run, step=origin.step, tokens=origin.tokens, scores=scores)
    if not is_silent:
        print(f"Kept in {scores_file(origin.run, origin.step)}")
    if problem:
        print(problem, file=sys.stderr)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Score a model: bits per byte of its run's test split, or as asked for below.",
    )
    add_model(parser)
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="bits per byte of prepared data, by the model's own tokenizer")
    add("--split", help="of the data (test where there is one, else validation)")
    add("--text", type=Path, action="append", default=[], metavar="FILE", help="of a text; - reads it; repeatable")
    add(
        "--answers",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="conversations, their last turn asked for",
    )
    add("--made", type=int, metavar="N", help="questions kept out of source=made_conversations")
    add("--num-new-tokens", type=int, default=100, metavar="N", help="of an answer at most (100)")
    add("--core", type=Path, metavar="FOLDER", help="the tasks of an unpacked eval_bundle.zip")
    add("--tasks", metavar="A,B", help="of the bundle, by their labels (all)")
    add("--max-items", type=int, metavar="N", help="of each task at most (all)")
    add("--context-tokens", type=int, metavar="N", help="of a window of text (as in training)")
    add("--batch-tokens", type=int, default=BATCH_TOKENS, metavar="N", help=f"read at once ({BATCH_TOKENS})")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of the products (fp32)")
    add("--json", action="store_true", help="print one JSON object")
    return parser
