"""The scores of `lmtrain evaluate`, one by one, each printed as it comes on lines of 80 columns."""

import argparse
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from lmtrain.cli.commands.evaluate_input import ANSWER_TOKENS, EvaluationInput
from lmtrain.evaluation.answers import ALL, Answered, Question, score_answers
from lmtrain.evaluation.bits_per_byte import TextScore
from lmtrain.evaluation.chat_tasks import LABELS, ChatTask, score_task
from lmtrain.evaluation.core import SPREAD_OVER_SEEDS, CoreScore, CoreTask, TaskScore, score_core
from lmtrain.evaluation.harness_tasks import score_tasks
from lmtrain.inference.chat import answer_all
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.run.stored_runs.loaded_models import context_of, score_split, score_texts
from lmtrain.tracking.sweep_file import ASSISTANT

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

CHAT_ANSWER_TOKENS: Final = 256
NUM_CORE_TASKS: Final = 22
SPLITS: Final = ("train", "validation", "test")  # a file of such a name gets another name for its score
NOISE: Final = "  0 is guessing, 1 no error; +- is the standard error over the items."

Found = str | tuple[str, dict[str, Any]]  # a line for people, or a score's metric and facts


def scores_of(asked: argparse.Namespace, loaded: LoadedModel, wanted: EvaluationInput) -> Iterator[Found]:
    """Yield each score as it comes, after its line."""
    device = next(loaded.model.parameters()).device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=asked.precision == "bf16"):
        yield from _text_scores(asked, loaded, wanted)
        if wanted.questions:
            yield from _answer_scores(asked, loaded, wanted.questions)
        if wanted.tasks:
            yield from _core_scores(asked, loaded, wanted.tasks)
        if wanted.chat:
            yield from _chat_scores(asked, loaded, wanted.chat)
        if wanted.harness is not None:
            yield from _harness_scores(asked, loaded, wanted.harness)


def _text_scores(asked: argparse.Namespace, loaded: LoadedModel, wanted: EvaluationInput) -> Iterator[Found]:
    sizes = {"context_tokens": asked.context_tokens, "batch_tokens": asked.batch_tokens}
    context = {"context_tokens": context_of(loaded, asked.context_tokens)} if wanted.dataset or wanted.texts else {}
    if (dataset := wanted.dataset) is not None:
        split = asked.split or ("test" if "test" in dataset.splits else "validation")
        score, scored = score_split(loaded, dataset, split, allowed=asked.allow_target, **sizes), dataset.split(split)
        all_bytes = scored.text_bytes if scored.has_loss_mask else None
        yield bits_line(f"{split} split of {dataset.folder}", score, all_bytes=all_bytes)
        facts = {"data": dataset.manifest.fingerprint, "split_bytes": scored.text_bytes, **context}
        yield f"evaluation/{split}/bits_per_byte", {**_bits(score), **facts, "is_assistant": scored.has_loss_mask}
    for key, (name, texts) in zip(text_keys([name for name, _ in wanted.texts]), wanted.texts, strict=True):
        score = score_texts(loaded, texts, **sizes)
        yield bits_line(name, score)
        yield (
            f"evaluation/{key}/bits_per_byte",
            {**_bits(score), "text": name, "sha256": _sha256("\n\n".join(texts)), **context},
        )


def _bits(score: TextScore) -> dict[str, Any]:
    facts = {"nats_per_token": score.nats_per_token, "num_bytes": score.num_bytes, "num_tokens": score.num_tokens}
    return {"score": score.bits_per_byte, "standard_error": score.standard_error, **facts}


def bits_line(name: str, score: TextScore, *, all_bytes: int | None = None) -> str:
    """Return the name of a text and its score; `all_bytes` are those of all turns if only the assistant's counted."""
    whose = "" if all_bytes is None else f"\n  {ASSISTANT}, {score.num_bytes:,} of {all_bytes:,} bytes"
    error = f" +- {score.standard_error:.4f}" if score.standard_error is not None else ""
    return (
        f"{name}\n  {score.bits_per_byte:.4f}{error} bits per byte   {score.nats_per_token:.4f} nats a token   "
        f"{score.num_bytes:,} bytes{whose}"
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def text_keys(names: Sequence[str]) -> list[str]:
    """Return a name for each text's metric: its file's, with a number if a split or an earlier text has it."""
    taken: list[str] = list(SPLITS)
    for path in map(Path, names):
        forms = (path.stem, path.name, f"{path.name}_{len(taken)}")
        taken.append(next(form for form in forms if form not in taken))
    return taken[len(SPLITS) :]


def _answer_scores(asked: argparse.Namespace, loaded: LoadedModel, questions: Sequence[Question]) -> Iterator[Found]:
    length = asked.num_new_tokens or ANSWER_TOKENS
    written = answer_all(loaded, [one.messages for one in questions], num_new_tokens=length)
    answered = [Answered(one.text, one.finish_reason == "stop") for one in written]
    sha256 = _sha256(repr([(one.messages, one.answer) for one in questions]))
    yield f"  {'':<20} {'right':>15}   {'commonest answer':>16}   {'ended':>6}"
    for score in score_answers(questions, answered):
        right = f"{score.accuracy:.1%} +- {score.standard_error:.1%}"
        yield f"  {score.label:<20} {right:>15}   {score.guess:>16.1%}   {score.ended:>6.1%} of {score.num_items:,}"
        place = next(place for place, one in enumerate(questions) if score.label in (one.kind, ALL))
        sample = {"asked": questions[place].messages[-1]["content"], "said": answered[place].text}
        facts = {"score": score.accuracy, "standard_error": score.standard_error, "guess": score.guess}
        facts |= {"ended": score.ended, "num_items": score.num_items, "sha256": sha256}
        yield f"answers/{score.label}", {**facts, "samples": [] if score.label == ALL else [sample]}


def _core_scores(asked: argparse.Namespace, loaded: LoadedModel, tasks: Sequence[CoreTask]) -> Iterator[Found]:
    scored = score_core(
        loaded.model,
        tasks,
        encode=loaded.tokenizer.encode_batch,
        begin_id=loaded.first_id,
        max_items=asked.max_items,
        batch_tokens=asked.batch_tokens,
    )
    yield from _task_scores("core", scored, asked)
    yield f"  Another training seed moves CORE by {SPREAD_OVER_SEEDS} (one recipe, 20 seeds)."
    if len(tasks) < NUM_CORE_TASKS:
        yield f"  CORE itself has {NUM_CORE_TASKS} tasks; these are {len(tasks)}."


def _chat_scores(asked: argparse.Namespace, loaded: LoadedModel, tasks: Sequence[ChatTask]) -> Iterator[Found]:
    length = asked.num_new_tokens or CHAT_ANSWER_TOKENS
    scored = (score_task(loaded, task, num_new_tokens=length, max_items=asked.max_items) for task in tasks)
    yield from _task_scores("chat", scored, asked)
    if len(tasks) < len(LABELS):
        yield f"  All tasks are {len(LABELS)}."


def _task_scores(group: str, scored: Iterable[TaskScore], asked: argparse.Namespace) -> Iterator[Found]:
    """Yield each task's score and their mean; that of typed tasks has another name than that of all."""
    scores: list[TaskScore] = []
    for task in scored:
        scores.append(task)
        error = f"{task.centred:7.4f} +- {task.standard_error:.4f}"
        yield f"  {task.label:<32} {error}   accuracy {task.accuracy:6.1%} of {task.num_items:,}"
        facts = {"accuracy": task.accuracy, "baseline": task.baseline, "num_items": task.num_items}
        yield f"{group}/{task.label}", {"score": task.centred, "standard_error": task.standard_error, **facts}
    mean, tasks = CoreScore(tuple(scores)), sorted(task.label for task in scores)
    title = f"{group}: the mean of these {len(tasks)}"
    yield f"  {title:<32} {mean.core:7.4f} +- {mean.standard_error:.4f}\n{NOISE}"
    facts = {"score": mean.core, "standard_error": mean.standard_error, "num_tasks": len(tasks), "tasks": tasks}
    yield f"{group}/mean_of_{len(tasks)}" if asked.tasks else f"{group}/mean", facts


def _harness_scores(asked: argparse.Namespace, loaded: LoadedModel, tasks: "TaskManager") -> Iterator[Found]:
    from lmtrain.evaluation.harness_model import HarnessModel

    model = HarnessModel(loaded, batch_tokens=asked.batch_tokens)
    flags = ("num_shots", "chat_template", "max_items", "num_new_tokens")
    for one in score_tasks(model, asked.lm_eval.split(","), tasks, **{flag: getattr(asked, flag) for flag in flags}):
        error = "" if one.standard_error is None else f" +- {one.standard_error:.4f}"
        items = "" if one.num_items is None else f"   of {one.num_items:,}"
        yield f"  {one.task:<28} {one.metric:<18} {one.value:.4f}{error}{items}"
        facts = {"standard_error": one.standard_error, "num_items": one.num_items, "num_shots": one.num_shots}
        yield f"lm_eval/{one.task}/{one.metric}", {"score": one.value, **facts}
