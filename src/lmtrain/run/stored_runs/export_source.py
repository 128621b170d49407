"""A run's checkpoint, or an imported folder, as a model to export: settings, weights, tokenizer and true facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_LOSS, averaged
from lmtrain.adapters.lora import Lora
from lmtrain.errors import ConfigurationError
from lmtrain.interop.hf_export import ModelToExport, export_config
from lmtrain.interop.imported import open_weights, read_facts
from lmtrain.interop.imported_folder import ORIGINAL, TOKENIZER, is_imported
from lmtrain.interop.model_card import CardFacts
from lmtrain.interop.model_settings import build
from lmtrain.interop.safetensors_files import DTYPES
from lmtrain.models.base import LanguageModel
from lmtrain.run.stored_runs.checkpoint_source import (
    CheckpointSource,
    adapter_part,
    buildable,
    checked_part,
    find_source,
)
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tracking.redaction import redact
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.training.checkpointing.weights import Kind, load_adapted, load_weights

TOLD = (BITS_PER_BYTE, VALIDATION_LOSS)


def model_to_export(
    path: Path, *, weights: Kind = "raw", allowed: Sequence[str] = (), own_code: bool = True
) -> ModelToExport:
    """Return the model of a path; `allowed` are the targets allowed on the command line beside ours.

    Without `own_code` a class of transformers must compute it.

    Raises:
        ConfigurationError: It means none, or no class computes it: before any weight is read.
        EnvironmentProblem: The checkpoint is damaged.
    """
    source = find_source(path, key="SOURCE")
    if isinstance(source, Path) and weights != "raw":
        raise ConfigurationError(
            f"--weights {weights}: {path} is an imported folder, which has one kind; leave it out."
        )
    return (
        _of_import(source) if isinstance(source, Path) else _of_run(source, weights, allowed=allowed, own_code=own_code)
    )


@dataclass(frozen=True, kw_only=True)
class AdaptedModel:
    """A run's model with its adapters apart, and the settings of both; `base` is where its frozen weights are from."""

    model: LanguageModel
    adapter: Lora
    settings: Mapping[str, Any]
    base: str | None


def adapted_model(path: Path, *, weights: Kind = "raw", allowed: Sequence[str] = ()) -> AdaptedModel:
    """Return the adapted model of a run or a checkpoint.

    Raises:
        ConfigurationError: It was trained without an adapter, or means no run.
        EnvironmentProblem: The checkpoint is damaged.
    """
    source = find_source(path, key="SOURCE")
    adapter = None if isinstance(source, Path) else adapter_part(source.job)
    if adapter is None or isinstance(source, Path):
        raise ConfigurationError(f"SOURCE={path} was trained without an adapter; `lmtrain export hf` takes it whole.")
    node = checked_part(source.job, "model", allowed=allowed)
    with torch.device("meta"):
        model: LanguageModel = node.build()
    model.to_empty(device="cpu")
    load_adapted(model, source.checkpoint.path, weights, adapter=adapter)
    return AdaptedModel(model=model, adapter=adapter, settings=node.values, base=source.job.config.get("init_from"))


def _of_import(folder: Path) -> ModelToExport:
    facts, files = read_facts(folder), open_weights(folder)
    shape = build(facts["settings"]).shape()
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
            context_tokens=facts["settings"]["max_context_tokens"],
            tokenizer_fingerprint=tokenizer.fingerprint if tokenizer else None,
            imported_from=Path(facts["source"]).name,
        ),
    )


def _of_run(source: CheckpointSource, kind: Kind, *, allowed: Sequence[str], own_code: bool) -> ModelToExport:
    node = checked_part(source.job, "model", allowed=allowed)
    export_config(node.values, own_code=own_code)
    with buildable(source.run), torch.device("meta"):
        model: LanguageModel = node.build()
    model.to_empty(device="cpu")  # every weight is read next; a start would only cost time
    load_weights(model, source.checkpoint.path, kind, adapter=adapter_part(source.job))
    weights = model.state_dict()
    tokenizer = load_tokenizer(source.run / "tokenizer")
    began = source.job.config.get("init_from")
    return ModelToExport(
        settings=node.values,
        weights=weights.__getitem__,
        dtype_of=lambda name: weights[name].dtype,
        tokenizer=tokenizer,
        companions=Path(began) / ORIGINAL if began and is_imported(Path(began)) else None,
        facts=_facts(source, model, tokenizer.fingerprint, began, kind),
    )


def _facts(
    source: CheckpointSource, model: LanguageModel, tokenizer_fingerprint: str, began: str | None, kind: Kind
) -> CardFacts:
    shape, checkpoint = model.shape(), source.checkpoint
    data = _json(source.run / "dataset.json")
    told = TOLD if kind == "raw" else tuple(averaged(name) for name in TOLD)
    measured = {name: checkpoint.metrics[name] for name in told if name in checkpoint.metrics}
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
        code_version=_code_version(source.run),
        imported_from=None if began is None else Path(began).name,
        is_averaged=kind != "raw",
        metrics=measured or _last_validation(source.run / "metrics.jsonl", checkpoint.step, told=told),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return foreign_json.read(path)
    except FileNotFoundError:
        return {}
    except ValueError as problem:
        raise ConfigurationError(f"{path} is no JSON ({problem}); restore it, or remove it.") from problem


def _last_validation(path: Path, step: int, *, told: Sequence[str] = TOLD) -> dict[str, float]:
    """Return the newest of these held-out figures up to a step."""
    newest: dict[str, float] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        point = foreign_json.parse(line)
        if point["step"] <= step:
            newest |= {name: point["metrics"][name] for name in told if name in point["metrics"]}
    return newest


def _code_version(run: Path) -> str | None:
    """Return the release and the commit of the newest accepted attempt, as far as they were noted."""
    attempt = RunFolder(run).accepted_attempt()
    if attempt is None:
        return None
    release, commit = _json(attempt / "versions.json").get("lmtrain"), _json(attempt / "git.json").get("commit")
    return ", commit ".join(filter(None, (release, commit))) or None
