"""A run, a checkpoint, an imported folder or one of transformers, as a model for generation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lmtrain.errors import ConfigurationError
from lmtrain.inference.loaded_model import LoadedModel, Origin, id_of_begin, ids_added, ids_of_ends, read_template
from lmtrain.inference.packed_linear import pack_linears
from lmtrain.inference.paged_attention import paged
from lmtrain.inference.weight_layout import lay_out_for_one_token
from lmtrain.interop.config_file import CONFIG
from lmtrain.interop.finite import require_finite
from lmtrain.interop.hf_import import fill_from_hugging_face, open_hugging_face
from lmtrain.interop.imported import fill_from, open_weights, read_facts
from lmtrain.interop.imported_folder import ORIGINAL, TOKENIZER
from lmtrain.interop.model_settings import build
from lmtrain.models.base import LanguageModel
from lmtrain.run.stored_runs.checkpoint_source import (
    CheckpointSource,
    adapter_part,
    buildable,
    checked_part,
    find_source,
)
from lmtrain.run.stored_runs.conversed import has_conversed
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.training.checkpointing.weights import Kind, load_weights


def model_to_run(
    path: Path, *, weights: Kind = "raw", device: str = "auto", allowed: Sequence[str] = ()
) -> LoadedModel:
    """Return the model of a path, with its weights in fp32; `allowed` are targets of the command line.

    `device` auto is an accelerator where there is one, else the CPU.

    Raises:
        ConfigurationError: It means none, or this machine has no such device.
        DataError: The folder is damaged, has no tokenizer, or a weight of NaN or infinity.
        EnvironmentProblem: The checkpoint is damaged.
    """
    place = _device(device)
    if (path / CONFIG).is_file():
        _require_raw(weights, path, "a folder of transformers")
        return _of_hugging_face(path, place)
    source = find_source(path, key="RUN")
    if isinstance(source, Path):
        _require_raw(weights, path, "an imported folder")
        return _of_import(source, place)
    return _of_run(source, weights, place, allowed=allowed)


def _of_run(source: CheckpointSource, kind: Kind, device: torch.device, *, allowed: Sequence[str]) -> LoadedModel:
    node = checked_part(source.job, "model", allowed=allowed)
    # Whichever kernel trained it: attention over a cache, where the model attends.
    more: dict[str, Any] = {"attention": paged} if "attention" in node else {}
    with buildable(source.run), torch.device("meta"):
        model: LanguageModel = node.without("attention").build(**more)
    _make_room(model)
    load_weights(model, source.checkpoint.path, kind, adapter=adapter_part(source.job))
    _require_finite(model, source.checkpoint.path)
    tokenizer = load_tokenizer(source.run / TOKENIZER)
    return LoadedModel(
        name=source.run.name,
        model=_placed(model, device),
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


def _of_import(folder: Path, device: torch.device) -> LoadedModel:
    if not (folder / TOKENIZER).is_dir():
        raise ConfigurationError(f"RUN={folder} was imported without its tokenizer; import it again with one.")
    model, tokenizer = build(read_facts(folder)["settings"], attention=paged), load_tokenizer(folder / TOKENIZER)
    _make_room(model)
    fill_from(model, open_weights(folder))
    _require_finite(model, folder)
    original = folder / ORIGINAL
    return LoadedModel(
        name=folder.name,
        model=_placed(model, device),
        tokenizer=tokenizer,
        tokenizer_path=folder / TOKENIZER,
        template=read_template(original),
        end_ids=ids_of_ends(tokenizer, original),
        begin_id=id_of_begin(tokenizer, original),
        added_ids=ids_added(original),
    )


def _of_hugging_face(folder: Path, device: torch.device) -> LoadedModel:
    source = open_hugging_face(folder, with_tokenizer=False)
    tokenizer = load_tokenizer(folder)
    model = build(source.description.settings, attention=paged)
    _make_room(model)
    fill_from_hugging_face(model, source)
    return LoadedModel(
        name=folder.resolve().name,
        model=_placed(model, device),
        tokenizer=tokenizer,
        tokenizer_path=folder,
        template=read_template(folder),
        end_ids=ids_of_ends(tokenizer, folder),
        begin_id=id_of_begin(tokenizer, folder),
        added_ids=ids_added(folder),
    )


def _make_room(model: LanguageModel) -> None:
    """Give a model of the meta device memory and its tables; its weights are read next."""
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.initialize_weights(torch.Generator().manual_seed(0))


def _placed(model: LanguageModel, device: torch.device) -> LanguageModel:
    """Move a model to its device, its weights in the best order for writing there."""
    moved = model.to(device)
    lay_out_for_one_token(moved)
    pack_linears(moved)
    return moved


def _require_finite(model: LanguageModel, where: Path) -> None:
    for name, weight in model.named_parameters():
        require_finite(weight.detach(), name=name, where=where)


def _require_raw(weights: Kind, path: Path, what: str) -> None:
    if weights != "raw":
        raise ConfigurationError(f"--weights {weights}: {path} is {what}, which has one kind; leave it out.")


def _device(name: str) -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return accelerator or torch.device("cpu")
    if name == "cpu" or (accelerator is not None and accelerator.type == name):
        return torch.device(name)
    nearest = "cpu" if accelerator is None else f"cpu or {accelerator.type}"
    raise ConfigurationError(f"--device {name} is not on this machine; nearest valid: {nearest}.")
