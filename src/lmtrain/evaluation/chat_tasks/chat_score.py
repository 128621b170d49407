"""Score chat tasks: the likeliest letter, or the written answer; accuracies centred by their baselines.

N questions, V vocabulary.
"""

import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from lmtrain.evaluation.chat_tasks.chat_core import ChatTask
from lmtrain.evaluation.chat_tasks.chat_items import LetterItem, WrittenItem
from lmtrain.evaluation.core.score import TaskScore
from lmtrain.evaluation.scored_rows import score_next
from lmtrain.models.base import LanguageModel

ORDER_SEED: Final = 1337

Prompt = Callable[[str], list[int]]
Letter = Callable[[str], int]
Write = Callable[[Sequence[str]], list[str]]


def score_task(
    model: LanguageModel,
    task: ChatTask,
    *,
    prompt: Prompt,
    letter: Letter,
    write: Write,
    max_items: int | None = None,
    batch_tokens: int,
) -> TaskScore:
    """Score a task, or `max_items` of it drawn by a fixed seed.

    `prompt` gives the ids up to the answer's start of a user's turn, `letter` the id of a letter there, and `write`
    the written answers to users' turns.
    """
    items = list(task.items)
    random.Random(ORDER_SEED).shuffle(items)
    items = items[:max_items]
    if isinstance(items[0], LetterItem):
        lettered = cast("list[LetterItem]", items)
        rows = [prompt(item.text) for item in lettered]
        letters = [[letter(one) for one in item.letters] for item in lettered]
        found = score_next(model, rows, letters, batch_tokens=batch_tokens)
        num_right = sum(scores.index(max(scores)) == item.gold for scores, item in zip(found, lettered, strict=True))
    else:
        written = cast("list[WrittenItem]", items)
        answers = write([item.text for item in written])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            num_right = sum(pool.map(lambda pair: pair[0].is_right(pair[1]), zip(written, answers, strict=True)))
    return TaskScore(label=task.label, num_right=num_right, num_items=len(items), baseline=task.baseline)
