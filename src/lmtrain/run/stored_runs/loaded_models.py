"""A run, a checkpoint, an imported folder or one of transformers as a model in memory: to generate and to score."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.data.packing import Contiguous, Packing
from lmtrain.data.shards import REBUILD, Dataset
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError
from lmtrain.evaluation.bits_per_byte import TextScore, batches_of_texts, batches_of_windows, score_held_out
from lmtrain.inference.cache import cached_sdpa
from lmtrain.inference.loaded_model import (
    LoadedModel,
    Origin,
    id_of_begin,
    ids_added,
    ids_of_ends,
    lay_out_for_one_token,
)
from lmtrain.interop.folders import CONFIG, ORIGINAL, TOKENIZER, is_imported
from lmtrain.interop.hf_import import fill_from, fill_from_hugging_face, open_hugging_face, open_weights, read_facts
from lmtrain.interop.model_settings import build
from lmtrain.interop.safetensors_files import require_finite
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.run.stored_runs.find_run import (
    CheckpointSource,
    adapter_part,
    checked_part,
    find_job,
    find_source,
    run_of,
)
from lmtrain.run.stored_runs.identity import tokenizer_fix
from lmtrain.run.stored_runs.job import StoredJob
from lmtrain.run.stored_runs.resume import WAYS_TO_GO_ON
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tokenizers.templates import read_template
from lmtrain.training.checkpointing.weights import Kind, load_weights

CONTEXT_TOKENS: Final = 2048  # of a folder that does not say how its model was trained


def model_to_run(
    path: Path, *, weights: Kind = "raw", device: str = "auto", allowed: Sequence[str] = ()
) -> LoadedModel:
    """Return the model of a path, with its weights in fp32; `allowed` are targets of the command line.

    `device` auto is an accelerator if there is one, else the CPU.
    """
    place = _device(device)
    source = path if (path / CONFIG).is_file() else find_source(path, key="RUN")
    if not isinstance(source, Path):
        return _of_run(source, weights, place, allowed=allowed)
    require_raw(weights, path)
    return _of_folder(path, place)


def stored_shape(path: Path, *, key: str, allowed: Sequence[str] = ()) -> ModelShape:
    """Return the shape of the model of a run or an imported folder, without its weights; `key` is its name."""
    with torch.device("meta"):
        if is_imported(path):
            model = build(read_facts(path)["settings"], attention=cached_sdpa)
        else:
            model = checked_part(find_job(path, key=key), "model", allowed=allowed).build()
    return model.shape()


def require_raw(weights: Kind, folder: Path) -> None:
    """Refuse averaged weights of a folder that has one kind alone."""
    if weights != "raw":
        raise ConfigurationError(f"--weights {weights}: {folder} is not a run and has one kind; leave it out.")


def checkpoint_model(
    source: CheckpointSource, kind: Kind, *, allowed: Sequence[str] = (), to_run: bool = False
) -> LanguageModel:
    """Return the model of a checkpoint on the CPU, its adapters merged; `to_run` gives it a cache and tables."""
    node = checked_part(source.job, "model", allowed=allowed)
    more: dict[str, Any] = {"attention": cached_sdpa} if to_run and "attention" in node else {}
    with torch.device("meta"):
        model: LanguageModel = node.without(*more).build(**more)
    if to_run:
        _allocate(model)
    else:
        model.to_empty(device="cpu")
    load_weights(model, source.checkpoint.path, kind, adapter=adapter_part(source.job))
    return model


def _of_run(source: CheckpointSource, kind: Kind, device: torch.device, *, allowed: Sequence[str]) -> LoadedModel:
    model = checkpoint_model(source, kind, allowed=allowed, to_run=True)
    tokenizer = load_tokenizer(source.run / TOKENIZER)
    return LoadedModel(
        name=source.run.name,
        model=_placed(model, device, where=source.checkpoint.path),
        tokenizer=tokenizer,
        tokenizer_path=source.run / TOKENIZER,
        end_ids=ids_of_ends(tokenizer),
        converses=has_conversed(source.run, source.job),
        origin=Origin(
            run=source.run,
            step=source.checkpoint.step,
            tokens=source.checkpoint.tokens,
            context_tokens=checked_part(source.job, "batch").values["context_tokens"],
        ),
    )


def _of_folder(folder: Path, device: torch.device) -> LoadedModel:
    """Return the model of a folder of transformers, or of an imported one, which keeps the original's files."""
    if (folder / CONFIG).is_file():
        source, original, tokenizer_path = open_hugging_face(folder, with_tokenizer=False), folder, folder
        model = build(source.description.settings, attention=cached_sdpa)
        _allocate(model)
        fill_from_hugging_face(model, source)
    else:
        original, tokenizer_path = folder / ORIGINAL, folder / TOKENIZER
        if not tokenizer_path.is_dir():
            raise ConfigurationError(f"RUN={folder} was imported without its tokenizer; import it again with one.")
        model = build(read_facts(folder)["settings"], attention=cached_sdpa)
        _allocate(model)
        fill_from(model, open_weights(folder))
    tokenizer = load_tokenizer(tokenizer_path)
    return LoadedModel(
        name=folder.resolve().name,
        model=_placed(model, device, where=folder),
        tokenizer=tokenizer,
        tokenizer_path=tokenizer_path,
        template=read_template(original),
        end_ids=ids_of_ends(tokenizer, original),
        begin_id=id_of_begin(tokenizer, original),
        added_ids=ids_added(original),
    )


def _allocate(model: LanguageModel) -> None:
    """Give a model of the meta device memory and its tables; its weights are read next."""
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.initialize_weights(torch.Generator().manual_seed(0))


def _placed(model: LanguageModel, device: torch.device, *, where: Path) -> LanguageModel:
    """Move a model of finite weights to its device, without dropout, in the best layout for generation there."""
    for name, weight in model.named_parameters():
        require_finite(weight.detach(), name=name, where=where)
    moved = model.to(device).eval()
    lay_out_for_one_token(moved)
    return moved


def _device(name: str) -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return accelerator or torch.device("cpu")
    if name == "cpu" or (accelerator is not None and accelerator.type == name):
        return torch.device(name)
    known = "cpu" if accelerator is None else f"cpu or {accelerator.type}"
    raise ConfigurationError(f"--device: must be {known} on this machine, got {name}.")


def has_conversed(run: Path, job: StoredJob) -> bool:
    """Return whether a run or one before it learned from conversations; also true if a record does not say."""
    if not is_of_text(run, job):
        return True
    resume = job.config.get("resume")
    before = job.config.get("init_from") or (resume if resume not in WAYS_TO_GO_ON else None)
    if before is None:
        return False
    try:
        earlier = run_of(Path(before))
        return has_conversed(earlier, find_job(earlier, key="init_from"))
    except (*LMTRAIN_ERRORS, TypeError, RecursionError):  # an imported folder, or gone
        return True


def is_of_text(run: Path, job: StoredJob) -> bool:
    """Return whether all of the data is known to have no marks of an assistant's answers."""
    try:
        data: Any = foreign_json.read(run / "dataset.json")
        shards = [shard for split in data["splits"].values() for shard in split["shards"]]
        return "sources" not in job.config["data"]["folder"] and not any(shard.get("mask_sha256") for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


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

    A folder without a run takes contiguous windows, or whole conversations.
    """
    path = loaded.tokenizer_path
    way = REBUILD if path is None else f"Score text prepared with {tokenizer_fix(path.parent)}."
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


def score_texts(
    loaded: LoadedModel, texts: Sequence[str], *, context_tokens: int | None, batch_tokens: int
) -> TextScore:
    """Score texts apart from one another, each of their bytes once, in windows of the context."""
    batches = batches_of_texts(
        [loaded.tokenizer.encode(text) for text in texts],
        begin_id=loaded.first_id,
        context_tokens=context_of(loaded, context_tokens),
        batch_tokens=batch_tokens,
    )
    return score_held_out(loaded.model, batches, token_bytes=_token_bytes(loaded), loss=ChunkedCrossEntropy())


def context_of(loaded: LoadedModel, context_tokens: int | None) -> int:
    """Return the tokens of a window: as given, else as in training, else at most CONTEXT_TOKENS."""
    longest = loaded.model.max_context_tokens
    if context_tokens is not None and context_tokens > longest:
        raise ConfigurationError(f"--context-tokens: must be at most the model's {longest}, got {context_tokens}.")
    return context_tokens or (loaded.origin.context_tokens if loaded.origin else min(longest, CONTEXT_TOKENS))


def _token_bytes(loaded: LoadedModel) -> torch.Tensor:
    """Return each id's number of bytes, 0 for ids of a padded vocabulary: [V]."""
    known = torch.from_numpy(loaded.tokenizer.token_bytes().astype("int64"))
    return torch.nn.functional.pad(known, (0, max(0, loaded.model.vocab_size - len(known))))
