"""Take a folder of transformers for continued training: checked from config and headers first, then copied.

The result holds weights under our names in their original dtype, the model's settings, the tokenizer, and the original
small files, for an export to give back.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.interop.folders import (
    ADAPTER_CONFIG,
    CONFIG,
    FACTS,
    ORIGINAL,
    TOKENIZER,
    WEIGHTS,
    class_settings,
    make_folder,
    read_config_file,
)
from lmtrain.interop.hf_config import OWN_TYPE, ModelDescription, read_config
from lmtrain.interop.model_settings import TARGET, build
from lmtrain.interop.packed_weights import HEAD, text_model, unpacked
from lmtrain.interop.safetensors_files import (
    DTYPES,
    TensorToWrite,
    WeightFiles,
    require_finite,
    write_shards,
)
from lmtrain.interop.tensor_map import MappedTensor, map_tensors
from lmtrain.interop.tokenizer_files import copy_companions, read_tokenizer
from lmtrain.models.transformers_config import AS_IS
from lmtrain.models.transformers_model import TransformersModel, read_module
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import DAMAGES, one_line
from lmtrain.storage.hashed_folder import require_whole
from lmtrain.tokenizers.base import Tokenizer

BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)$")  # older releases saved these
LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
EXPERT = re.compile(r"\.experts\.(\d+)\.")
FURTHER = "mtp."  # layers that predict further tokens
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel:
    """A checked folder of transformers; `prefix` is the part its names lack of the expected ones."""

    folder: Path
    description: ModelDescription
    mapped: Sequence[MappedTensor]
    files: WeightFiles
    prefix: str
    num_parameters: int
    tokenizer: Tokenizer | None

    def read(self, name: str) -> Tensor:
        """Return a tensor by its name in transformers, its values finite."""
        name = name.removeprefix(self.prefix)
        return require_finite(self.files.read(name), name=name, where=self.files.facts[name].file)


def open_hugging_face(folder: Path, *, with_tokenizer: bool = True) -> HuggingFaceModel:
    """Check a folder without reading a weight: architecture, features, names, shapes, dtypes, lengths, tokenizer."""
    config, files = text_model(read_config_file(folder), WeightFiles(folder))
    description = _checked(folder, partial(read_config, config))
    files = unpacked(files, config.get("quantization_config"))
    _require_counts(description, files)
    model = _checked(folder, partial(build, description.settings))
    mapped = map_tensors(model, description.model_type)
    prefix = _missing_prefix(mapped, files)
    _require_same_tensors(mapped, files, prefix, skipped=description.skipped_layers)
    tokenizer = read_tokenizer(folder) if with_tokenizer else None
    if tokenizer is not None:
        _require_room(folder, tokenizer, model.vocab_size)
    return HuggingFaceModel(
        folder=folder,
        description=description,
        mapped=mapped,
        files=files,
        prefix=prefix,
        num_parameters=model.shape().num_parameters,
        tokenizer=tokenizer,
    )


def _checked(folder: Path, read: Callable[[], Result]) -> Result:
    """Read the settings in config.json; a wrong value is a fault of the folder."""
    try:
        return read()
    except DataError:
        raise
    except ConfigurationError as problem:
        raise DataError(f"{folder / CONFIG} is invalid: {problem}") from problem
    except (*DAMAGES, RuntimeError) as problem:  # a text where a number belongs, and the like
        why = one_line(problem)
        raise DataError(f"{folder / CONFIG} is damaged, a value is of the wrong kind: {why}.") from problem


def import_folder(model: HuggingFaceModel, out: Path, *, source: str | None = None) -> None:
    """Write a new folder as a start for train.py; `source` is what transformers loads the model by (its folder).

    Raises:
        ConfigurationError: `out` is taken.
        DataError: A weight is infinite or no number, or a tied head differs from its embedding.
        EnvironmentProblem: The folder cannot be written.
    """
    _require_tied_alike(model)
    described = {"model_type": model.description.model_type, "settings": model.description.settings}
    facts = {"source": source or str(model.folder), **described}
    tensors = [_to_write(model, tensor) for tensor in model.mapped]
    make_folder(
        out, partial(fill_import, tensors=tensors, facts=facts, tokenizer=model.tokenizer, original=model.folder)
    )


def import_as_is(folder: Path, out: Path, *, source: str, with_tokenizer: bool = True) -> TransformersModel:
    """Write a new folder with any causal model of transformers, to train on from by its own class; return the model."""
    config = class_settings(folder)
    WeightFiles(folder)  # refuses pickled and damaged files
    if (folder / ADAPTER_CONFIG).exists():
        raise DataError(f"{folder} has {ADAPTER_CONFIG} next to a model; move it, or use `lmtrain import peft`.")
    tokenizer = read_tokenizer(folder) if with_tokenizer else None
    model = _checked(folder, partial(read_module, folder, config))
    if tokenizer is not None:
        _require_room(folder, tokenizer, model.vocab_size)
    settings = {TARGET: AS_IS, "config": config}
    facts = {"source": source, "model_type": config["model_type"], "settings": settings}
    tensors = [
        TensorToWrite(name, tensor.nbytes, require_finite(tensor, name=name, where=folder).clone)  # some are tied
        for name, tensor in model.state_dict().items()
    ]
    make_folder(out, partial(fill_import, tensors=tensors, facts=facts, tokenizer=tokenizer, original=folder))
    return model


def _require_room(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size} entries, its model vocab_size={vocab_size}; "
            "they do not belong together."
        )


def fill_from_hugging_face(ours: nn.Module, model: HuggingFaceModel) -> None:
    """Copy every weight of a checked folder into a model, in the model's dtype.

    Raises:
        DataError: A weight is infinite or no number, or a tied head differs from its embedding.
    """
    _require_tied_alike(model)
    weights = ours.state_dict()
    with torch.no_grad():
        for tensor in model.mapped:
            weights[tensor.name].copy_(_joined(model, tensor, _dtype(model, tensor)))


def fill_import(
    folder: Path,
    tensors: Sequence[TensorToWrite],
    *,
    facts: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    original: Path | None,
) -> None:
    """Write the files of an imported folder; `original` has those of transformers, for an export to give back."""
    for name in (WEIGHTS, ORIGINAL):
        (folder / name).mkdir()
    write_shards(folder / WEIGHTS, tensors)
    if original is not None and (original / CONFIG).is_file():
        (folder / ORIGINAL / CONFIG).write_bytes((original / CONFIG).read_bytes())
    if tokenizer is not None:
        if original is not None:
            copy_companions(original, folder / ORIGINAL)
        tokenizer.save(folder / TOKENIZER)
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n")


def _to_write(model: HuggingFaceModel, tensor: MappedTensor) -> TensorToWrite:
    dtype = _dtype(model, tensor)
    return TensorToWrite(
        tensor.name, torch.Size(tensor.shape).numel() * dtype.itemsize, partial(_joined, model, tensor, dtype)
    )


def _joined(model: HuggingFaceModel, tensor: MappedTensor, dtype: torch.dtype) -> Tensor:
    ours = torch.empty(tensor.shape, dtype=dtype)
    for part in tensor.parts:
        view = part.of(ours)
        view.copy_(model.read(part.name).view(view.shape))
    return ours


def _dtype(model: HuggingFaceModel, tensor: MappedTensor) -> torch.dtype:
    """Return a dtype exact for every part."""
    names = (part.name.removeprefix(model.prefix) for part in tensor.parts)
    return reduce(torch.promote_types, (DTYPES[model.files.facts[name].dtype] for name in names))


def _require_counts(description: ModelDescription, files: WeightFiles) -> None:
    """Refuse more layers or experts than the files have tensors of, before such a model is built."""
    settings = description.settings
    counts = {"layers": (LAYER, settings["num_layers"])}
    if description.model_type != OWN_TYPE:  # with its experts as one tensor a layer, like ours
        experts: Mapping[str, Any] = settings.get("experts") or {}
        counts["experts"] = (EXPERT, experts.get("num_experts", 0))
    for kind, (pattern, stated) in counts.items():
        present = {found[1] for found in map(pattern.search, files.facts) if found}
        if kind == "experts" and not present:  # one tensor of all
            present = range(max((facts.shape[0] for facts in files.facts.values() if len(facts.shape) > 2), default=0))
        if stated > len(present):
            raise DataError(
                f"{files.folder / CONFIG} says {stated} {kind}, and the files have tensors of {len(present)}; "
                "copy the model's folder again."
            )


def _missing_prefix(mapped: Sequence[MappedTensor], files: WeightFiles) -> str:
    """Return the first word of the names when no file has it: as published GPT-2, saved without its head."""
    prefix = mapped[0].parts[0].name.partition(".")[0] + "."
    return "" if any(name.startswith(prefix) for name in files.facts) else prefix


def _require_same_tensors(
    mapped: Sequence[MappedTensor], files: WeightFiles, prefix: str, *, skipped: Collection[int]
) -> None:
    expected = {part.name.removeprefix(prefix): tensor.part_shape(part) for tensor in mapped for part in tensor.parts}
    extra = [name for name in files.facts if name not in expected and name != HEAD and not BUFFERS.search(name)]
    extra = [name for name in extra if not name.startswith(FURTHER)]
    extra = [name for name in extra if not (found := LAYER.search(name)) or int(found[1]) not in skipped]
    if missing := [name for name in expected if name not in files.facts]:
        fix = " Is tie_word_embeddings=true missing in config.json?" if missing == [HEAD] else ""
        near = suggest(missing[0], extra)
        raise DataError(f"{files.folder} lacks the tensor {missing[0]} ({len(missing)} in all).{near}{fix}")
    if extra:
        raise DataError(
            f"{files.folder} has the tensor {extra[0]} ({len(extra)} in all) outside the model of {CONFIG}."
        )
    for name, shape in expected.items():
        facts = files.facts[name]
        if facts.shape != shape:
            raise DataError(f"{name} in {facts.file} is {list(facts.shape)}; config.json says {list(shape)}.")
        if facts.dtype not in DTYPES:
            raise DataError(f"{name} in {facts.file} is of dtype {facts.dtype}; known: {', '.join(DTYPES)}.")


def _require_tied_alike(model: HuggingFaceModel) -> None:
    """Refuse a head different from its tied embedding."""
    names = {part.name for tensor in model.mapped for part in tensor.parts}
    if HEAD in names or HEAD not in model.files.facts:
        return
    embedding = next(part.name for part in model.mapped[0].parts)
    head, table = model.files.read(HEAD), model.read(embedding)
    if head.shape != table.shape or not torch.equal(head, table):
        raise DataError(
            f"{model.folder / CONFIG} has tie_word_embeddings=true, but {HEAD} differs from {embedding}; "
            "set it to false, or remove the head."
        )


def read_facts(folder: Path) -> dict[str, Any]:
    """Return an import's notes: the settings of the model, and its origin."""
    require_whole(folder)
    return foreign_json.read(folder / FACTS)


def open_weights(folder: Path) -> WeightFiles:
    """Return the weights of an imported folder, to be read one by one."""
    return WeightFiles(folder / WEIGHTS)


def require_shapes(model: nn.Module, found: Mapping[str, tuple[int, ...]], *, source: Path | str) -> None:
    """Refuse weights of other names or shapes than a model's; `source` is the value of init_from."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    differing = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if differing:
        there, here = ([*of.get(differing[0], ())] or "missing" for of in (found, wanted))
        raise ConfigurationError(
            f"init_from={source} is another model: {differing[0]} is {there} there and {here} here "
            f"(differing tensors: {len(differing)}). Give init_from={source} alone: it brings its own model."
        )


def require_fit(model: nn.Module, files: WeightFiles) -> None:
    """Refuse weights of another model, by the headers of their files alone; raises as `require_shapes` does."""
    found = {name: facts.shape for name, facts in files.facts.items()}
    require_shapes(model, found, source=files.folder.parent)


def fill_from(model: nn.Module, files: WeightFiles) -> None:
    """Copy every weight of an imported folder into a model, in the model's dtype."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(files.read(name))
