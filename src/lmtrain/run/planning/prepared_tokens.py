"""How many tokens a config's data has to train on, where it is prepared already; nothing is prepared for a plan.

A folder named outright, or each of a mixture, is read itself. Where settings decide the folder, only preparing
gives its name: a run or `lmtrain prepare` stores it in the cache, for later plans of the same settings.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtrain.accounting.options.parts import PackingFacts
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.validators.callbacks import held_out_passes
from lmtrain.tracking.atomic_files import read_json, write_json

if TYPE_CHECKING:
    from lmtrain.data.mixture import Phase

MANIFEST = "dataset.json"
MEMORY = "data"  # in the cache


def prepared_train_tokens(config: RunConfig) -> int | None:
    """Return the training tokens of all folders of the config, None where one of them is not known."""
    return _sum(_tokens_of(folder) for folder in prepared_folders(config))


def prepared_epoch_tokens(config: RunConfig) -> int | None:
    """Return the tokens of all training rows once, padding included, None where a folder is not known.

    Rows fitted to one another count as full until their index is built.
    """
    return _sum(_epoch_tokens_of(config, folder) for folder in prepared_folders(config))


def held_out_tokens(config: RunConfig, split: str) -> list[int]:
    """Return the tokens of a split of each folder of the config; empty where one of them is not known."""
    counts = [_tokens_of(folder, split=split) for folder in prepared_folders(config)]
    return [count for count in counts if count is not None] if None not in counts else []


def require_split(config: RunConfig) -> None:
    """Refuse folders that are there without the split of the run's validation."""
    passes = held_out_passes(config)
    names = [f"data.sources.{name}: " for name in config.data.get("sources") or {}] or [""]
    for name, folder in zip(names, prepared_folders(config), strict=True) if passes else ():
        splits: Any = None if folder is None else read_json(Path(folder) / MANIFEST).get("splits")
        if passes and isinstance(splits, dict):
            passes.require_split([*splits], of=f"{name}data set {folder}")


def awaited_facts(config: RunConfig) -> str | None:
    """Return the words for a plan's gaps before a run has opened its data; None of known data, or of no folder."""
    if not (config.data.get("sources") or config.data.node("folder")) or prepared_train_tokens(config) is not None:
        return None
    awaited = "not known before a run has prepared or opened it: epochs, the time of validation"
    if config.packing.get("document_mask"):
        awaited += "; assumed until then: attention over all of the context, as if a row were one document"
    return awaited


def source_epochs(config: RunConfig, run_tokens: int) -> dict[str, float]:
    """Return the passes of a run of `run_tokens` over each source of a mixture; empty where unknown."""
    if not config.data.get("sources"):
        return {}
    from lmtrain.data.mixture import mean_shares  # numpy: for mixtures alone

    folders, phases = _mixture(config)
    shares = mean_shares(phases)
    counts = {name: _epoch_tokens_of(config, str(folder)) for name, folder in folders.items()}
    return {name: shares[name] * run_tokens / count for name, count in counts.items() if count}


def masked_documents(config: RunConfig, folder: Path | None = None) -> dict[int, float] | None:
    """Return the numbers of documents by length, where they do not see one another and the data is known.

    `folder` None is the known folder of the config's data. Those of a mixture count by their sources'
    shares of the run's tokens.
    """
    if not config.packing.get("document_mask"):
        return None
    if config.data.get("sources"):
        from lmtrain.data.mixture import mean_shares  # numpy: for mixtures alone

        folders, phases = _mixture(config)
        shares = {folders[name]: share for name, share in mean_shares(phases).items() if share}
    else:
        found = folder or _folder_of(config)
        shares = {} if found is None else {Path(found): 1.0}
    if not shares or not all((folder / MANIFEST).exists() for folder in shares):
        return None
    from lmtrain.data.packing_index import document_lengths  # numpy: only where it counts documents
    from lmtrain.data.shards import open_dataset

    mixed: dict[int, float] = {}
    for folder, share in shares.items():
        counts = document_lengths(open_dataset(folder))
        scale = 1.0 if len(shares) == 1 else share / sum(length * count for length, count in counts.items())
        for length, count in counts.items():
            mixed[length] = mixed.get(length, 0.0) + scale * count
    return mixed


def _mixture(config: RunConfig) -> "tuple[dict[str, Path], Sequence[Phase]]":
    """Return the folder of each source of a mixture, and their weights through the run."""
    from lmtrain.data.mixture import parse_schedule, parse_sources  # numpy: for mixtures alone

    sources = parse_sources(config.data.get("sources"))
    folders = {name: Path(source.path) for name, source in sources.items()}
    return folders, parse_schedule(sources, config.data.get("schedule") or ())


def prepared_folders(config: RunConfig) -> list[str | None]:
    """Return the folder of each source, None where it is not known; an entry of None without any."""
    sources: dict[str, dict[str, Any]] = config.data.get("sources") or {}
    return [source.get("path") for source in sources.values()] or [_folder_of(config)]


def _folder_of(config: RunConfig) -> str | None:
    folder, cache = config.data.node("folder"), Path(config.run.cache)
    if folder is None:
        return None
    is_stored = "path" not in folder and (cache / MEMORY).is_dir()
    remembered: dict[str, Any] = read_json(_memory(folder, cache)) if is_stored else {}
    return folder.get("path") or remembered.get("folder")


def remember_folder(config: RunConfig, folder: Path) -> None:
    """Keep the folder of the data's settings."""
    if node := config.data.node("folder"):
        remember_prepared(node, folder, cache=Path(config.run.cache))


def remember_prepared(node: Node, folder: Path, *, cache: Path) -> None:
    """Keep the folder of these settings of a preparation."""
    memory, content = _memory(node, cache), {"folder": str(folder.absolute())}
    if read_json(memory) != content:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, content)


def _memory(folder: Node, cache: Path) -> Path:
    """Return the cache's file with the folder of a preparation's settings."""
    settings = dict(folder.without("engine", "num_processes").canonical())
    if isinstance(tokenizer := settings.get("tokenizer"), dict) and (path := tokenizer.get("path")):
        settings["tokenizer"] = {**tokenizer, "path": _content_of(Path(path))}
    content = json.dumps(settings, sort_keys=True, default=str)
    return cache / MEMORY / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"


def _content_of(tokenizer: Path) -> str:
    """Return a hash of a tokenizer's file, alike for all runs that hand it on; the path itself where there is none."""
    from lmtrain.tokenizers.base import TOKENIZER_FILE  # not for a tokenizer of the run's own

    file = tokenizer if tokenizer.is_file() else tokenizer / TOKENIZER_FILE
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else str(tokenizer)


def _tokens_of(folder: str | None, *, split: str = "train") -> int | None:
    return None if folder is None else _split_of(folder, split).get("num_tokens")


def _split_of(folder: str, split: str) -> dict[str, int]:
    manifest: dict[str, Any] = read_json(Path(folder) / MANIFEST)
    return manifest.get("splits", {}).get(split, {})


def _epoch_tokens_of(config: RunConfig, folder: str | None) -> int | None:
    num_tokens = _tokens_of(folder)
    if folder is None or num_tokens is None:
        return None
    facts, context = config.facts(PackingFacts) or PackingFacts(), config.batch.context_tokens
    if facts.index is not None:
        from lmtrain.data.packing_index import known_rows  # numpy: only for an index
        from lmtrain.data.shards import open_dataset

        num_rows = known_rows(open_dataset(Path(folder)), facts.index, context_tokens=context)
        return num_tokens if num_rows is None else num_rows * context
    num_documents = _split_of(folder, "train").get("num_documents", 0)
    return facts.epoch_tokens(num_tokens, num_documents=num_documents, context_tokens=context)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)
