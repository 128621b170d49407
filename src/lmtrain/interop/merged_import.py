"""Write a base model with an adapter's changes in its weights, as a folder to train on from and to talk to."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from lmtrain.interop.config_file import CONFIG
from lmtrain.interop.hf_export import ModelToExport
from lmtrain.interop.imported_folder import FACTS, ORIGINAL, TOKENIZER, WEIGHTS
from lmtrain.interop.model_settings import build, complete
from lmtrain.interop.new_folder import make_folder
from lmtrain.interop.peft_import import PeftFolder, add_changes
from lmtrain.interop.safetensors_files import TensorToWrite, write_shards
from lmtrain.interop.tokenizer_files import copy_companions

MAX_SHARD_BYTES = 5_000_000_000


def import_merged(base: ModelToExport, adapter: PeftFolder, out: Path) -> int:
    """Write the folder, as `import_folder` does; return the number of changed modules.

    Raises:
        ConfigurationError: `out` is taken.
        DataError: The adapter is of another model.
        EnvironmentProblem: The folder cannot be written.
    """
    settings = complete(base.settings)
    settings = {name: value for name, value in settings.items() if name != "attention"}
    model = build(settings)
    model.to_empty(device="cpu")
    model.load_state_dict({name: base.weights(name) for name in model.state_dict()})
    add_changes(model, adapter)
    weights = {name: tensor.to(base.dtype_of(name)) for name, tensor in model.state_dict().items()}

    def write(folder: Path) -> None:
        (folder / WEIGHTS).mkdir()
        tensors = [TensorToWrite(name, it.nbytes, lambda it=it: it) for name, it in weights.items()]
        write_shards(folder / WEIGHTS, tensors, max_shard_bytes=MAX_SHARD_BYTES)
        if base.companions is not None and base.companions.is_dir():
            (folder / ORIGINAL).mkdir()
            copy_companions(base.companions, folder / ORIGINAL)
            if (config := base.companions / CONFIG).is_file():  # it may name the ends of a text
                shutil.copyfile(config, folder / ORIGINAL / CONFIG)
        if base.tokenizer is not None:
            base.tokenizer.save(folder / TOKENIZER)
        facts: dict[str, Any] = {"source": str(adapter.folder), "settings": settings}
        (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n")

    with torch.no_grad():
        make_folder(out, facts={}, write=write)
    return len(adapter.factors)
