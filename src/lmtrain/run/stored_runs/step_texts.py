"""The beginnings of the texts of a run's past step, for its page."""

from pathlib import Path
from typing import Final

from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.run.stored_runs.trained_step import trained_step

MOST_ROWS: Final = 4
MOST_CHARACTERS: Final = 400


def step_texts(run: Path, step: int) -> list[str]:
    """Return the beginnings of the first rows of a step; nothing where its data is no longer there."""
    try:
        found = trained_step(run, step)
    except LMTRAIN_ERRORS:
        return []
    rows = found.rows.ids[:MOST_ROWS]
    texts = [found.tokenizer.decode([int(token) for token in row]) for row in rows]
    return [text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…" for text in texts]
