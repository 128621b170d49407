"""Bits per byte of a stored model: of a split, cut as its run's validation cut it, or of any text."""

from collections.abc import Sequence

import torch

from lmtrain.data.packing import Contiguous, Packing
from lmtrain.data.shards import REBUILD, Dataset
from lmtrain.errors import ConfigurationError
from lmtrain.evaluation.held_out import TextScore, batches_of_texts, batches_of_windows, score_held_out
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.run.stored_runs.checkpoint_source import checked_part, find_job
from lmtrain.run.stored_runs.own_tokenizer import preparation_by

CONTEXT_TOKENS = 2048  # of a folder silent about its training data


def score_split(
    loaded: LoadedModel,
    dataset: Dataset,
    split: str,
    *,
    context_tokens: int | None,
    batch_tokens: int,
    allowed: Sequence[str] = (),
) -> TextScore:
    """Score a split of prepared data in windows of its run's packing.

    A folder without a run takes contiguous ones, of conversations whole ones.

    Raises:
        ConfigurationError: The context is longer than the model's.
        DataError: There is no such split, or it has the ids of another tokenizer.
    """
    way = REBUILD
    if loaded.tokenizer_path is not None:
        way = f"Encode its text with the model's: {preparation_by(loaded.tokenizer_path, dataset.manifest)}"
    dataset.require_tokenizer(loaded.tokenizer.fingerprint, way=way)
    packing: Packing = Contiguous(document_mask=dataset.split(split).has_loss_mask)
    if loaded.origin is not None:
        packing = checked_part(find_job(loaded.origin.run, key="RUN"), "packing", allowed=allowed).build()
    context = context_of(loaded, context_tokens)
    windows = packing.held_out(dataset, split, context_tokens=context, max_tokens=None)
    return score_held_out(
        loaded.model,
        batches_of_windows(windows, batch_tokens=batch_tokens),
        token_bytes=_token_bytes(loaded),
        loss=ChunkedCrossEntropy(),
    )


def score_text(loaded: LoadedModel, text: str, *, context_tokens: int | None, batch_tokens: int) -> TextScore:
    """Score a text, each of its bytes once, in windows of the context.

    Raises: ConfigurationError when the context is longer than the model's.
    """
    context = context_of(loaded, context_tokens)
    batches = batches_of_texts(
        [loaded.tokenizer.encode(text)],
        begin_id=loaded.first_id,
        context_tokens=context,
        batch_tokens=batch_tokens,
    )
    return score_held_out(loaded.model, batches, token_bytes=_token_bytes(loaded), loss=ChunkedCrossEntropy())


def context_of(loaded: LoadedModel, asked: int | None) -> int:
    """Return the tokens of a window: as asked, else as in training, else at most CONTEXT_TOKENS."""
    most = loaded.model.max_context_tokens
    if asked is not None and asked > most:
        raise ConfigurationError(f"--context-tokens {asked} is over the model's {most}; nearest valid: {most}.")
    return asked or (loaded.origin.context_tokens if loaded.origin else min(most, CONTEXT_TOKENS))


def _token_bytes(loaded: LoadedModel) -> torch.Tensor:
    """Return each id's bytes; ids beyond the tokenizer's, as of a padded vocabulary, have none: [V]."""
    known = torch.from_numpy(loaded.tokenizer.token_bytes().astype("int64"))
    return torch.nn.functional.pad(known, (0, max(0, loaded.model.vocab_size - len(known))))
