"""A run's own tokenizer: the weights know its ids alone, so other data is encoded by it, or refused."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lmtrain.data.manifest import Manifest
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import file_values
from lmtrain.run.compose.paths import key_of, option_names
from lmtrain.run.compose.start_options import path_value, tokenizer_words
from lmtrain.run.schema.node import Node
from lmtrain.run.stored_runs.checkpoint_source import run_of
from lmtrain.run.stored_runs.job import Job
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tokenizers.special_tokens import is_unused
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import shown_path
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts

TOKENIZER: Final = "tokenizer"  # the group, a checkpoint's fact, and a run's folder of it


def with_tokenizer(checkpoint: CheckpointFacts, *, otherwise: object) -> CheckpointFacts:
    """Return a checkpoint's facts with its tokenizer: one written before manifests named it has the run's."""
    if TOKENIZER in checkpoint.identity:
        return checkpoint
    noted = read_json(checkpoint.path.parents[1] / "dataset.json").get("tokenizer_fingerprint", otherwise)
    return replace(checkpoint, identity={**checkpoint.identity, TOKENIZER: noted})


def keeping(folder: Path, typed: Sequence[str], data: Node) -> str:
    """Return the words for data in the ids of a run or an import; data made elsewhere needs more.

    `folder` is of the run, `typed` the command's words, of which those of another tokenizer leave.
    """
    words = shlex.join(tokenizer_words(shown_path(folder) / TOKENIZER))
    if not encodes_here(data):
        return f"text prepared with its own tokenizer ({words})"
    others = [word for word in typed if key_of(word).partition(".")[0] == TOKENIZER]
    return f"its own tokenizer{f', in the place of {shlex.join(others)}' if others else ''}: {words}"


def preparation_by(tokenizer: Path, manifest: Manifest) -> str:
    """Return the command that prepares data's text again, by another tokenizer.

    Its manifest tells source, budget and held-out shares; other words of its preparation are asked for.
    """
    held_out: Mapping[str, Any] = manifest.settings.get("held_out", {})
    usual = file_values("data=prepared")["folder"]
    named = {{"rule": "split"}.get(key, key): value for key, value in held_out.items() if value != "named"}
    settings = {f"data.folder.{key}": value for key, value in named.items() if usual.get(key, value) != value}
    if (tokens := manifest.settings.get("token_budget")) is not None:
        settings["budget.tokens"] = tokens
    source = _source_words(manifest.source)
    words = [*source, *(f"{key}={value}" for key, value in settings.items())]
    words += ["tokenizer=folder", f"tokenizer.path={path_value(shown_path(tokenizer))}"]
    unknown = [word for word in source if word.endswith("=...")]
    more = f" (with the words of its own preparation for {' '.join(unknown)})" if unknown else ""
    return f"{shlex.join(['lmtrain', 'prepare', *words])}{more}"


def _source_words(name: str) -> list[str]:
    """Return the words of a source, KEY=... for those that no manifest tells."""
    options = {*option_names("source")}
    if name not in options:
        return ["source=..."]
    missing = [key for key, value in file_values(f"source={name}").items() if value == "???"]
    return [f"source={name}", *(f"source.{key}=..." for key in missing)]


def encodes_here(data: Node) -> bool:
    """Tell whether a run's text is encoded by its own words, rather than read from folders made before."""
    folder = data.node("folder")
    return folder is not None and "source" in folder and TOKENIZER in folder


def require_base_tokenizer(job: Job, tokenizer: Tokenizer) -> str | None:
    """Refuse data with other ids than those of the model in `init_from`, or return a warning where that is allowed.

    More entries than the base has may be there.

    Raises:
        ConfigurationError: It has, and `run.allow_changes` does not name the tokenizer.
    """
    init_from = job.config.init_from
    if init_from is None:
        return None
    folder = run_of(Path(init_from)) / TOKENIZER
    if not folder.is_dir() or (base := load_tokenizer(folder)).fingerprint == tokenizer.fingerprint:
        return None
    differing = _num_differing(base, tokenizer)
    if not differing:
        return None
    told = f"{differing:,} of its {base.vocab_size:,} ids stand for other text in this run's data"
    if TOKENIZER in job.config.run.allow_changes:
        return f"WARNING: init_from={init_from} has another tokenizer, as run.allow_changes says: {told}."
    way = keeping(folder.parent, job.overrides, job.config.data)
    raise ConfigurationError(
        f"init_from={init_from} has another tokenizer: {told}. Train it on {way}; "
        f"'run.allow_changes=[{TOKENIZER}]' trains its weights on the other ids."
    )


def _num_differing(base: Tokenizer, other: Tokenizer) -> int:
    """Count the ids of both that are other bytes or another special token; one unused before may be anything."""
    there, here = ({id_: name for name, id_ in each.special_tokens.items()} for each in (base, other))
    pieces = zip(base.bytes_of_ids(), other.bytes_of_ids(), strict=False)
    return sum(
        not is_unused(there.get(id_, "")) and (old != new or there.get(id_) != here.get(id_))
        for id_, (old, new) in enumerate(pieces)
    )
