"""A run's checkpoint or an imported folder for others: the model to export, and the folder of `lmtrain push`."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_LOSS, averaged
from lmtrain.adapters.lora import Lora
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop.folders import ORIGINAL, TOKENIZER, is_imported
from lmtrain.interop.hf_export import CardFacts, ModelToExport, export_config, export_folder
from lmtrain.interop.hf_import import open_weights, read_facts
from lmtrain.interop.model_settings import build
from lmtrain.interop.safetensors_files import DTYPES
from lmtrain.models.base import LanguageModel
from lmtrain.run.stored_runs.find_run import CheckpointSource, adapter_part, checked_part, find_source
from lmtrain.run.stored_runs.loaded_models import checkpoint_model, is_of_text, require_raw
from lmtrain.storage.hashed_folder import MANIFEST
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.redaction import redact, redact_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import newest_with
from lmtrain.training.checkpointing.weights import Kind, load_adapted

CARD_METRICS: Final = (BITS_PER_BYTE, VALIDATION_LOSS)
PUSH_FOLDER: Final = ".push"
TEXT_SUFFIXES: Final = (
    *(".json", ".jsonl", ".yaml", ".yml", ".md", ".html", ".txt"),
    *(".diff", ".csv", ".jinja", ".log"),
)


def model_to_export(
    path: Path, *, weights: Kind = "raw", allowed: Sequence[str] = (), own_code: bool = True
) -> ModelToExport:
    """Return the model of a path; `allowed` are further targets of the command line.

    Without `own_code` a class of transformers must be able to compute it.
    """
    source = find_source(path, key="SOURCE")
    if not isinstance(source, Path):
        return _of_run(source, weights, allowed=allowed, own_code=own_code)
    require_raw(weights, path)
    return _of_import(source)


@dataclass(frozen=True, kw_only=True)
class AdaptedModel:
    """A run's model with its adapters apart, and the settings of both; `base` is where its frozen weights are from."""

    model: LanguageModel
    adapter: Lora
    settings: Mapping[str, Any]
    base: str | None


def adapted_model(path: Path, *, weights: Kind = "raw", allowed: Sequence[str] = ()) -> AdaptedModel:
    """Return the adapted model of a run or a checkpoint."""
    source = find_source(path, key="SOURCE")
    adapter = None if isinstance(source, Path) else adapter_part(source.job)
    if adapter is None or isinstance(source, Path):
        raise ConfigurationError(f"SOURCE={path} was trained without an adapter; use `lmtrain export hf`.")
    node = checked_part(source.job, "model", allowed=allowed)
    with torch.device("meta"):
        model: LanguageModel = node.build()
    model.to_empty(device="cpu")
    load_adapted(model, source.checkpoint.path, weights, adapter=adapter)
    return AdaptedModel(model=model, adapter=adapter, settings=node.values, base=source.job.config.get("init_from"))


def _of_import(folder: Path) -> ModelToExport:
    facts, files = read_facts(folder), open_weights(folder)
    model = build(facts["settings"])
    shape = model.shape()
    tokenizer = load_tokenizer(folder / TOKENIZER) if (folder / TOKENIZER).is_dir() else None
    return ModelToExport(
        settings=facts["settings"],
        weights=files.read,
        dtype_of=lambda name: DTYPES[files.facts[name].dtype],
        tokenizer=tokenizer,
        companions=folder / ORIGINAL,
        facts=CardFacts(
            name=folder.name,
            num_parameters=shape.num_parameters,
            num_active_parameters=shape.num_active_parameters,
            context_tokens=model.max_context_tokens,
            tokenizer_fingerprint=tokenizer.fingerprint if tokenizer else None,
            imported_from=Path(facts["source"]).name,
        ),
    )


def _of_run(source: CheckpointSource, kind: Kind, *, allowed: Sequence[str], own_code: bool) -> ModelToExport:
    settings = checked_part(source.job, "model", allowed=allowed).values
    export_config(settings, own_code=own_code)
    model = checkpoint_model(source, kind, allowed=allowed)
    weights, began = model.state_dict(), source.job.config.get("init_from")
    tokenizer = load_tokenizer(source.run / TOKENIZER)
    return ModelToExport(
        settings=settings,
        weights=weights.__getitem__,
        dtype_of=lambda name: weights[name].dtype,
        tokenizer=tokenizer,
        companions=Path(began) / ORIGINAL if began and is_imported(Path(began)) else None,
        tuned_to_converse=not is_of_text(source.run, source.job),
        facts=_facts(source, model, tokenizer.fingerprint, began, kind),
    )


def _facts(
    source: CheckpointSource, model: LanguageModel, tokenizer_fingerprint: str, began: str | None, kind: Kind
) -> CardFacts:
    shape, checkpoint, log = model.shape(), source.checkpoint, source.run / "metrics.jsonl"
    data: dict[str, Any] = read_json(source.run / "dataset.json")
    attempt = RunFolder(source.run).accepted_attempt() or source.run
    versions: list[Any] = [read_json(attempt / "versions.json").get("lmtrain")]
    versions.append(read_json(attempt / "git.json").get("commit"))
    names = CARD_METRICS if kind == "raw" else tuple(averaged(name) for name in CARD_METRICS)
    points = [newest_with(log, name, until=checkpoint.step) for name in names] if log.is_file() else []
    metrics = {name: value for point in points if point for name, value in point.metrics.items()} | checkpoint.metrics
    return CardFacts(
        name=source.run.name,
        num_parameters=shape.num_parameters,
        num_active_parameters=shape.num_active_parameters,
        context_tokens=model.max_context_tokens,
        step=checkpoint.step,
        tokens=checkpoint.tokens,
        data_name=redact(data.get("name")),
        data_fingerprint=data.get("fingerprint"),
        tokenizer_fingerprint=tokenizer_fingerprint,
        code_version=", commit ".join(filter(None, versions)) or None,
        imported_from=None if began is None else Path(began).name,
        is_averaged=kind != "raw",
        metrics={name: metrics[name] for name in names if name in metrics},
    )


def make_push_folder(run: Path, *, weights: Kind = "raw", allowed: Sequence[str] = ()) -> Path:
    """Export the newest checkpoint to a hidden folder of the run, and return it."""
    source = find_source(run, key="RUN")
    if isinstance(source, Path):
        raise ConfigurationError(f"RUN={run} is an imported folder; `lmtrain push` sends a run of lmtrain.")
    folder = source.run / PUSH_FOLDER / "bundle"
    folder.parent.mkdir(exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    model = model_to_export(source.checkpoint.path, weights=weights, allowed=allowed)
    export_folder(replace(model, facts=replace(model.facts, name=source.run.name)), folder)
    for path in sorted(folder.rglob("*")):
        if path.suffix not in TEXT_SUFFIXES or path.name in (MANIFEST, "tokenizer.json"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if redact_text(text) != text:
            raise EnvironmentProblem(  # the file, not the secret
                f"{path.relative_to(folder)} seems to hold a secret, so nothing was sent; remove it there."
            )
    return folder
