"""What a run's data needs: settings without a default, paths that are there, and a vocabulary of a known size."""

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import DataError, suggest_path, wrong
from lmtrain.run.run_config import KEYS, SCALARS, RunConfig
from lmtrain.run.schema.check import MISSING, REPEATS, no_value
from lmtrain.run.schema.node import leaf_keys, node_at

SOURCE_PATHS: Final = ("source.paths", "source.validation_paths")


def require_given(values: Mapping[str, Any]) -> None:
    """Refuse the first setting without a value: it has no default."""
    for name in (*sorted({*KEYS} - {*SCALARS, REPEATS}), REPEATS):
        missing = [key for key in leaf_keys(values[name], f"{name}.") if node_at(values, key) == MISSING]
        if missing:
            raise no_value(missing[0])


def require_paths(paths: Any, *, key: str) -> None:
    """Look at paths of this machine's disks; patterns and addresses are left out."""
    for path in [paths] if isinstance(paths, str) else paths if isinstance(paths, list) else ():
        is_elsewhere = "://" in str(path) or glob.has_magic(str(path))
        here = Path(str(path)).expanduser()
        if not is_elsewhere and not here.exists():
            raise DataError(f"{key}: {path} does not exist (looked from {Path.cwd()}).{suggest_path(here)}")


def require_size_for_model(config: RunConfig) -> None:
    """Refuse a model sized by a tokenizer of unstated size, and name the size."""
    followers = [node.key for node in (config.model, config.data) if node.get("vocab_size", 0) is None]
    if not followers:
        return
    spec = config.tokenizer.checked(config.allowed).build()
    rule = f"given where {followers[0]}.vocab_size follows it"
    raise wrong("tokenizer.vocab_size", rule, None, f"tokenizer.vocab_size={spec.vocab_size}")


def require_rows(num_rows: int, *, num_entries: int) -> None:
    """Refuse a model without a row for each entry of the tokenizer."""
    if num_rows < num_entries:
        raise wrong("model.vocab_size", f"at least the tokenizer's {num_entries} entries", num_rows, str(num_entries))
