"""The model behind written texts: a checkpoint or a folder by name and by its bytes, known without torch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lmtrain.interop.config_file import CONFIG
from lmtrain.run.stored_runs.checkpoint_source import find_source
from lmtrain.storage.hashed_folder import MANIFEST, file_sha256

OF_A_MODEL = ("*.json", "*.safetensors")  # in a folder of transformers, its tokenizer included
DIGITS = 16  # of a sha256, enough to tell models apart


@dataclass(frozen=True, kw_only=True)
class ModelBytes:
    """A model to read at `path`, its name for people, and `sha256` over the bytes of its files."""

    path: Path
    name: str
    sha256: str


def model_bytes(path: Path, *, key: str) -> ModelBytes:
    """Return the model of a run's newest checkpoint, of a checkpoint, an imported or a transformers folder.

    Raises:
        ConfigurationError: It is none of them; `key` is its name on the command line.
        EnvironmentProblem: All checkpoints of the run are damaged.
    """
    if (path / CONFIG).is_file():
        files = sorted(file for pattern in OF_A_MODEL for file in path.glob(pattern))
        return ModelBytes(path=path, name=path.resolve().name, sha256=_sha256(files))
    source = find_source(path, key=key)
    if isinstance(source, Path):
        return ModelBytes(path=path, name=path.resolve().name, sha256=_sha256([path / MANIFEST]))
    checkpoint = source.checkpoint.path
    name = f"{source.run.resolve().name}/{checkpoint.name}"
    return ModelBytes(path=checkpoint, name=name, sha256=_sha256([checkpoint / MANIFEST]))


def _sha256(files: list[Path]) -> str:
    """Join the sums of files; a manifest has those of all other files of its folder."""
    listed = "".join(f"{file.name} {file_sha256(file)}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()[:DIGITS]
