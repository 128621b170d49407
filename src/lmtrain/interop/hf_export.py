"""Write a model as a folder for transformers, and for vLLM and llama.cpp where transformers has a class for it.

Sharded safetensors, config, generation config, tokenizer, and a model card. The folder appears whole or not at all.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError
from lmtrain.interop.folders import CONFIG, make_folder
from lmtrain.interop.hf_config import CODE, OWN_TYPE, NoClass, own_config, write_config
from lmtrain.interop.hf_experts import Part
from lmtrain.interop.model_settings import MODELS, TARGET, build, complete
from lmtrain.interop.safetensors_files import MAX_SHARD_BYTES, TensorToWrite, require_finite, write_shards
from lmtrain.interop.tensor_map import MappedTensor, map_tensors
from lmtrain.interop.tokenizer_files import (
    add_ends,
    copy_companions,
    eos_token_id,
    is_same_tokenizer,
    write_own_template,
    write_tokenizer,
)
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.transformers_config import AS_IS
from lmtrain.models.transformers_model import write_module
from lmtrain.storage.damage import read_object
from lmtrain.tokenizers.base import Tokenizer


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The known origin of a model; None and empty are unknown, and left out.

    `metrics` are of the model's own weights; `is_averaged` where these are the moving average of a run's.
    """

    name: str
    num_parameters: int
    num_active_parameters: int
    context_tokens: int
    step: int | None = None
    tokens: int | None = None
    data_name: str | None = None
    data_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    code_version: str | None = None
    imported_from: str | None = None
    is_averaged: bool = False
    metrics: dict[str, float] = field(default_factory=dict[str, float])


CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [lmtrain]
---
# {name}

A language model trained with lmtrain. Licence: unknown; its publisher has to choose one, with the
licence of its training data in mind. It predicts text; it was not made to be helpful, true or harmless.

| fact | value |
|---|---|
{rows}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("."{trust})
tokenizer = AutoTokenizer.from_pretrained("."{trust})
ids = tokenizer("Once", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))
```
"""


def model_card(facts: CardFacts, *, architecture: str, dtype: str, has_own_code: bool = False) -> str:
    """Write the card; a model `has_own_code` where transformers has none for it."""
    trained = "nothing: imported weights as they were"
    if facts.tokens is not None and facts.step is not None:
        trained = f"{facts.tokens:,} tokens, {format_count(facts.step, 'optimizer step')}"
    rows = {
        "architecture": architecture,
        "parameters": f"{facts.num_parameters:,}",
        "active parameters": f"{facts.num_active_parameters:,}",
        "context": f"{facts.context_tokens:,} tokens",
        "dtype": dtype,
        "trained here on": trained,
        "data": facts.data_name,
        "data fingerprint": facts.data_fingerprint,
        "tokenizer fingerprint": facts.tokenizer_fingerprint,
        "lmtrain": facts.code_version,
        "weights began as": facts.imported_from,
        "weights": "the moving average of the training's" if facts.is_averaged else None,
        **{name: f"{value:.4f}" for name, value in sorted(facts.metrics.items())},
    }
    return CARD.format(
        name=facts.name,
        rows="\n".join(f"| {name} | {value} |" for name, value in rows.items() if value is not None),
        trust=", trust_remote_code=True" if has_own_code else "",
    )


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class ModelToExport:
    """A model: settings as a config node, weights by name, tokenizer, and facts for the card.

    `companions` is a folder with files of transformers, as kept by an import: where its tokenizer is this one, they
    are written back as they were, but for the chat template of a model `tuned_to_converse`.
    """

    settings: Mapping[str, Any]
    weights: Callable[[str], Tensor]
    dtype_of: Callable[[str], torch.dtype]
    tokenizer: Tokenizer | None
    facts: CardFacts
    companions: Path | None = None
    tuned_to_converse: bool = False


def export_config(settings: Mapping[str, Any], *, own_code: bool = True, prefer: str | None = None) -> dict[str, Any]:
    """Return the config.json of a model's settings; with `own_code`, of our class where transformers has none.

    Of several classes it is `prefer`'s. Our class is of a dense Llama with all options that no class has.

    Raises:
        ConfigurationError: No class computes this model.
    """
    if settings.get(TARGET) == AS_IS:
        if not own_code:
            raise ConfigurationError("SOURCE is a model of its class in transformers; use `lmtrain export hf`.")
        return {**settings["config"], "architectures": [build(settings).name]}
    whole = complete(settings)
    try:
        return write_config(whole, prefer=prefer)
    except NoClass:
        if not own_code or MODELS[whole[TARGET]] is GPT2 or whole["experts"] is not None:
            raise
        return own_config(whole)


def export_folder(
    model: ModelToExport, out: Path, *, dtype: torch.dtype | None = None, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write a model into a new folder; `dtype` None keeps each tensor's own.

    Raises:
        ConfigurationError: No class computes this model, or `out` is taken.
        DataError: A weight is infinite or no number.
        EnvironmentProblem: The folder cannot be written.
    """
    original = {} if model.companions is None else read_object(model.companions / CONFIG)
    config = export_config(model.settings, prefer=original.get("model_type"))
    fill = _fill_as_is if model.settings.get(TARGET) == AS_IS else _fill
    make_folder(out, partial(fill, model, config, dtype, max_shard_bytes))


def _fill_as_is(
    model: ModelToExport, config: dict[str, Any], dtype: torch.dtype | None, max_shard_bytes: int, folder: Path
) -> None:
    """Write by the class's own `save_pretrained`."""
    weights = {
        name.removeprefix("module."): require_finite(model.weights(name), name=name, where=model.facts.name).to(dtype)
        for name in build(model.settings).state_dict()
    }
    write_module(model.settings["config"], weights, folder, max_shard_bytes=max_shard_bytes)
    kept = str(dtype or next(iter(weights.values())).dtype).removeprefix("torch.")
    _write_tokenizer_and_card(model, config, folder, dtype=kept)


def _fill(
    model: ModelToExport, config: dict[str, Any], dtype: torch.dtype | None, max_shard_bytes: int, folder: Path
) -> None:
    built = build({**model.settings, **({"biases": True} if config["model_type"] == "gpt2" else {})})
    mapped, shapes = map_tensors(built, config["model_type"]), built.state_dict()
    lacks_biases = config["model_type"] == "gpt2" and not complete(model.settings)["biases"]

    @lru_cache(maxsize=1)  # parts of one tensor follow one another
    def read(name: str) -> Tensor:
        is_absent = lacks_biases and name.endswith(".bias")  # zeros in transformers, whose GPT-2 always has biases
        return torch.zeros_like(shapes[name], device="cpu") if is_absent else model.weights(name)

    def dtype_of(name: str) -> torch.dtype:
        return dtype or model.dtype_of(name.replace(".bias", ".weight") if lacks_biases else name)

    kept = {tensor.name: dtype_of(tensor.name) for tensor in mapped}
    tensors = [
        _to_write(read, tensor, part, kept[tensor.name], where=model.facts.name)
        for tensor in mapped
        for part in tensor.parts
    ]
    write_shards(folder, tensors, max_shard_bytes=max_shard_bytes)
    main_dtype = str(kept[mapped[0].name]).removeprefix("torch.")
    content = {**config, **_token_ids(model), "dtype": main_dtype, "torch_dtype": main_dtype}
    if config["model_type"] == OWN_TYPE:
        shutil.copyfile(CODE, folder / CODE.name)
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")
    _write_tokenizer_and_card(model, config, folder, dtype=main_dtype)


def _to_write(
    read: Callable[[str], Tensor], tensor: MappedTensor, part: Part, dtype: torch.dtype, *, where: str
) -> TensorToWrite:
    def make() -> Tensor:
        cut = part.of(read(tensor.name)).to(dtype)
        whole = require_finite(cut, name=part.name, where=where).clone(memory_format=torch.contiguous_format)
        return whole.view(shape)

    shape = torch.Size(tensor.part_shape(part))
    return TensorToWrite(part.name, shape.numel() * dtype.itemsize, make)


def _write_tokenizer_and_card(model: ModelToExport, config: Mapping[str, Any], folder: Path, *, dtype: str) -> None:
    tokenizer, companions, has_own_code = model.tokenizer, model.companions, config["model_type"] == OWN_TYPE
    if companions is not None and (tokenizer is None or is_same_tokenizer(tokenizer, companions)):
        copy_companions(companions, folder)
        if tokenizer is not None:
            add_ends(tokenizer, folder)
            if model.tuned_to_converse:
                write_own_template(tokenizer, folder)
    elif tokenizer is not None:
        write_tokenizer(tokenizer, folder, max_context_tokens=model.facts.context_tokens)
    card = model_card(model.facts, architecture=config["architectures"][0], dtype=dtype, has_own_code=has_own_code)
    (folder / "README.md").write_text(card)


def _token_ids(model: ModelToExport) -> dict[str, int | list[int]]:
    """Return the ids of a text's begin and end, and an imported model's of padding."""
    padding = None if model.companions is None else read_object(model.companions / CONFIG).get("pad_token_id")
    ids: dict[str, int | list[int]] = {} if padding is None else {"pad_token_id": padding}
    if model.tokenizer is not None:
        ids |= {"bos_token_id": model.tokenizer.end_of_text_id, "eos_token_id": eos_token_id(model.tokenizer)}
    return ids
