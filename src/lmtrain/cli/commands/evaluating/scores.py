"""The scores of `lmtrain evaluate`, one by one, each printed as it comes."""

import argparse
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from lmtrain.cli.commands.evaluating.flags import ANSWER_TOKENS
from lmtrain.cli.commands.evaluating.input import EvaluationInput
from lmtrain.evaluation.answers import ALL, Answered, Question, score_answers
from lmtrain.evaluation.bits_per_byte import TextScore
from lmtrain.evaluation.chat_tasks import ChatTask, score_task
from lmtrain.evaluation.core import CoreScore, CoreTask, TaskScore, score_core
from lmtrain.evaluation.harness_tasks import HarnessTasks, score_tasks
from lmtrain.inference.chat import answer_all
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.report.score_lines import (
    answers_head,
    answers_line,
    bits_line,
    chat_lines,
    core_line,
    core_notes,
    harness_line,
    task_line,
)
from lmtrain.run.stored_runs.loaded_models import context_of, score_split, score_text

CHAT_ANSWER_TOKENS: Final = 256
SPLITS: Final[tuple[str, ...]] = (
    "train",
    "validation",
    "test",
)  # of prepared data: a file of such a name has a score of its own

Say = Callable[[str], None]
Named = tuple[str, dict[str, Any]]


def scores_of(asked: argparse.Namespace, loaded: LoadedModel, wanted: EvaluationInput) -> Iterator[Named]:
    """Yield the metric and the facts of each score, printed as it comes."""

    def say(line: str) -> None:
        if not asked.json:
            print(line, flush=True)

    device = next(loaded.model.parameters()).device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=asked.precision == "bf16"):
        yield from _text_scores(asked, loaded, wanted, say)
        if wanted.asked:
            yield from _answer_scores(asked, loaded, wanted.asked, say)
        if wanted.tasks:
            yield from _core_scores(asked, loaded, wanted.tasks, say)
        if wanted.chat:
            yield from _chat_scores(asked, loaded, wanted.chat, say)
        if wanted.harness is not None:
            yield from _harness_scores(asked, loaded, wanted.harness, say)


def _text_scores(asked: argparse.Namespace, loaded: LoadedModel, wanted: EvaluationInput, say: Say) -> Iterator[Named]:
    sizes = {"context_tokens": asked.context_tokens, "batch_tokens": asked.batch_tokens}
    context = {"context_tokens": context_of(loaded, asked.context_tokens)} if wanted.dataset or wanted.texts else {}
    if (dataset := wanted.dataset) is not None:
        split = asked.split or ("test" if "test" in dataset.splits else "validation")
        score = score_split(loaded, dataset, split, allowed=asked.allow_target, **sizes)
        scored = dataset.split(split)
        of_turns = scored.text_bytes if scored.has_loss_mask else None
        say(bits_line(f"{split} split of {dataset.folder}", score, score.standard_error, of_turns=of_turns))
        facts = {"data": dataset.manifest.fingerprint, "split_bytes": scored.text_bytes, **context}
        yield f"evaluation/{split}/bits_per_byte", {**_bits(score), **facts, "is_assistant": scored.has_loss_mask}
    for key, (name, text) in zip(text_keys([name for name, _ in wanted.texts]), wanted.texts, strict=True):
        score = score_text(loaded, text, **sizes)
        say(bits_line(name, score, score.standard_error))
        yield f"evaluation/{key}/bits_per_byte", {**_bits(score), "text": name, "sha256": _sha256(text), **context}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def text_keys(names: Sequence[str]) -> list[str]:
    """Return a metric's word for each text: its file's name as short as tells it from the others and from a split."""
    taken: list[str] = list(SPLITS)
    for path in map(Path, names):
        forms = (path.stem, path.name, "_".join(path.parts).strip("/_"), f"{path.name}_{len(taken)}")
        taken.append(next(form for form in forms if form not in taken))
    return taken[len(SPLITS) :]


def _chat_scores(
    asked: argparse.Namespace, loaded: LoadedModel, tasks: Sequence[ChatTask], say: Say
) -> Iterator[Named]:
    length = asked.num_new_tokens or CHAT_ANSWER_TOKENS
    scores: list[TaskScore] = []
    for task in tasks:
        settings = {"num_new_tokens": length, "max_items": asked.max_items, "batch_tokens": asked.batch_tokens}
        scores.append(score_task(loaded, task, **settings))
        say(task_line(scores[-1]))
        yield f"chat/{task.label}", _task_facts(scores[-1])
    of_core = CoreScore(tuple(score for score, task in zip(scores, tasks, strict=True) if task.is_core))
    if of_core.tasks:
        for line in chat_lines(of_core):
            say(line)
        yield _mean_name("chat", asked, of_core), _mean_facts(of_core)


def _harness_scores(asked: argparse.Namespace, loaded: LoadedModel, tasks: HarnessTasks, say: Say) -> Iterator[Named]:
    from lmtrain.evaluation.harness_model import HarnessModel

    model = HarnessModel(loaded, batch_tokens=asked.batch_tokens)
    for one in score_tasks(model, tasks):
        say(harness_line(one))
        facts = {"standard_error": one.standard_error, "num_items": one.num_items, "num_shots": one.num_shots}
        yield f"lm_eval/{one.task}/{one.metric}", {"score": one.value, **facts}


def _task_facts(task: TaskScore) -> dict[str, Any]:
    facts = {"accuracy": task.accuracy, "baseline": task.baseline, "num_items": task.num_items}
    return {"score": task.centred, "standard_error": task.standard_error, **facts}


def _core_scores(
    asked: argparse.Namespace, loaded: LoadedModel, tasks: tuple[CoreTask, ...], say: Say
) -> Iterator[Named]:
    core = score_core(
        loaded.model,
        tasks,
        encode=loaded.tokenizer.encode_batch,
        begin_id=loaded.first_id,
        max_items=asked.max_items,
        batch_tokens=asked.batch_tokens,
        report=lambda task: say(task_line(task)),
    )
    for line in (core_line(core), *core_notes(core)):
        say(line)
    for task in core.tasks:
        yield f"core/{task.label}", _task_facts(task)
    yield _mean_name("core", asked, core), _mean_facts(core)


def _mean_facts(core: CoreScore) -> dict[str, Any]:
    tasks = sorted(task.label for task in core.tasks)
    return {"score": core.core, "standard_error": core.standard_error, "num_tasks": len(tasks), "tasks": tasks}


def _mean_name(group: str, asked: argparse.Namespace, core: CoreScore) -> str:
    """Name a mean: that of typed tasks neither replaces the whole one nor joins its curve."""
    return f"{group}/mean_of_{len(core.tasks)}" if asked.tasks else f"{group}/mean"


def _answer_scores(
    flags: argparse.Namespace, loaded: LoadedModel, asked: tuple[Question, ...], say: Say
) -> Iterator[Named]:
    length = flags.num_new_tokens or ANSWER_TOKENS
    written = answer_all(loaded, [one.messages for one in asked], num_new_tokens=length)
    answered = [Answered(one.text, one.finish_reason == "stop") for one in written]
    say(answers_head())
    for score in score_answers(asked, answered):
        say(answers_line(score))
        place = next(place for place, one in enumerate(asked) if score.kind in (one.kind, ALL))
        said = [{"asked": asked[place].messages[-1]["content"], "said": answered[place].text}]
        facts: dict[str, Any] = {"guess": score.guess, "ended": score.ended, "num_items": score.num_items}
        facts["sha256"] = _sha256(repr([(one.messages, one.answer) for one in asked]))
        facts["samples"] = said if score.kind != ALL else []
        yield f"answers/{score.kind}", {"score": score.accuracy, "standard_error": score.standard_error, **facts}


def _bits(score: TextScore) -> dict[str, Any]:
    facts = {"nats_per_token": score.nats_per_token, "num_bytes": score.num_bytes, "num_tokens": score.num_tokens}
    return {"score": score.bits_per_byte, "standard_error": score.standard_error, **facts}
