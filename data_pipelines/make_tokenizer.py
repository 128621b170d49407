"""Learn one tokenizer from a source's training text, save it, and compare it with others on text it has not seen.

source -> clean -> deduplicate -> split -> learn from the training text -> save -> bytes per token of held-out text
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from data_pipelines.progress import stage
from data_pipelines.sources.base import Document, Source
from data_pipelines.stages.split import TRAIN, VALIDATION, held_out_of, split_documents
from data_pipelines.stages.stage import OnlyEncodable, Stage, content_of, in_turn
from data_pipelines.stages.train_tokenizer import TokenizerSpec
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import fsync_all, rename_durably
from lmtrain.tokenizers.base import TOKENIZER_FILE, Tokenizer, is_unused
from lmtrain.tokenizers.bpe import BytePairTokenizer
from lmtrain.tokenizers.loading import find_tokenizer, load_tokenizer

THIS = "this"
HELD_OUT = "held-out text"
SAMPLES = Path(__file__).with_name("text_samples.json")  # written for this, about a kilobyte of each type

Density = dict[str, dict[str, float]]


@dataclass(frozen=True)
class TokenizerReport:
    """The new tokenizer, and its density; `folder` None: nothing was saved."""

    folder: str | None
    vocab_size: int
    num_used: int
    special_tokens: list[str]
    num_unused: int
    left_out: list[str]
    fingerprint: str
    sizes: dict[str, int]
    bytes_per_token: Density


def make_tokenizer(
    *,
    source: Source,
    tokenizer: TokenizerSpec,
    cleaning: Mapping[str, Stage] | None = None,
    deduplicate: Mapping[str, Stage] | None = None,
    compare: str | Sequence[str] = (),
    folder: str | None = None,
    root: str = "tokenizers",
    held_out_bytes: int = 1_000_000,
) -> TokenizerReport:
    """Make the tokenizer, save it where it was learned here or a `folder` is named, and compare it.

    `folder` None names one in `root` after the source, the size and the content. Text and split are those of `prepare`.

    Raises:
        ConfigurationError: The folder holds another tokenizer, a name to compare does not exist, or deduplication needs
            the whole corpus.
        DataError: No text to learn from, or a tokenizer that is damaged or loses text.
        EnvironmentProblem: The folder cannot be written, or a download fails.
    """
    names = [compare] if isinstance(compare, str) else compare
    others = {name: load_tokenizer(find_tokenizer(name, key="compare")) for name in names}
    path = Path(folder) if folder else None
    if path and path.exists() and not (path / TOKENIZER_FILE).is_file() and (path.is_file() or any(path.iterdir())):
        raise ConfigurationError(f"folder={path} exists and holds something else; name another one.")
    for name, each in (deduplicate or {}).items():
        if each.scope == "corpus":
            rule = f"deduplicate.{name} compares all documents, and a tokenizer is learned in one pass"
            raise ConfigurationError(f"{rule}; use deduplicate=exact.")
    source.check()
    stages = (*(cleaning or {}).values(), OnlyEncodable(), *(deduplicate or {}).values())

    documents = (item for item in in_turn(stages, source.documents()) if isinstance(item, Document))
    pairs, held_out = split_documents(documents, held_out=held_out_of(source, fractions=(0.05, 0.05))), list[str]()
    texts = _read_texts(pairs, held_out, num_bytes=tokenizer.sample_bytes, held_out_bytes=held_out_bytes)
    first = [*islice(texts, 1)] if tokenizer.sample_bytes else []  # a given tokenizer is found before any text
    if tokenizer.sample_bytes and not first:
        raise DataError(f"source {source.name} gives no text to learn from.")
    with stage("tokenizer") as progress:
        made = tokenizer.build(chain(first, texts))
        progress.notes.append(f"{made.vocab_size:,} entries")
    for _ in texts:  # until there is enough held-out text
        pass
    saved = _save(made, folder, root=root, name=source.name) if tokenizer.sample_bytes or folder else None
    compared: dict[str, Tokenizer] = {THIS: made, **others}
    return TokenizerReport(
        folder=str(saved) if saved else None,
        vocab_size=made.vocab_size,
        num_used=sum(1 for piece in made.bytes_of_ids() if piece),
        special_tokens=[name for name in made.special_tokens if not is_unused(name)],
        num_unused=sum(map(is_unused, made.special_tokens)),
        left_out=list(made.left_out) if isinstance(made, BytePairTokenizer) else [],
        fingerprint=made.fingerprint,
        sizes={name: one.vocab_size for name, one in compared.items()},
        bytes_per_token=bytes_per_token(compared, held_out=held_out),
    )


def bytes_per_token(tokenizers: Mapping[str, Tokenizer], *, held_out: Sequence[str]) -> Density:
    """Return, for each type of text and then each tokenizer, the bytes per token; more is denser."""
    samples: dict[str, str] = foreign_json.read(SAMPLES)
    texts: dict[str, Sequence[str]] = {name: [text] for name, text in samples.items()}
    texts |= {HELD_OUT: held_out} if held_out else {}
    sizes = {kind: sum(len(text.encode()) for text in some) for kind, some in texts.items()}
    return {
        kind: {name: sizes[kind] / len(one.encode_batch_flat(some)[0]) for name, one in tokenizers.items()}
        for kind, some in texts.items()
    }


def _read_texts(
    pairs: Iterable[tuple[str, Document]], held_out: list[str], *, num_bytes: int, held_out_bytes: int
) -> Iterator[str]:
    """Yield about this many bytes of training text; on the way, and behind it, fill `held_out`."""
    for split, document in pairs:
        text = content_of(document)
        if split == VALIDATION and held_out_bytes > 0:
            held_out.append(text)
            held_out_bytes -= len(text.encode())
        elif split == TRAIN and num_bytes > 0:
            num_bytes -= len(text.encode())
            yield text
        if num_bytes <= 0 and held_out_bytes <= 0:
            return


def _save(tokenizer: Tokenizer, folder: str | None, *, root: str, name: str) -> Path:
    """Save whole or not at all; the same tokenizer, if it is already there, stays."""
    path = Path(folder or Path(root) / f"{name}-{tokenizer.vocab_size}-{tokenizer.fingerprint[:8]}")
    if (path / TOKENIZER_FILE).is_file():
        if load_tokenizer(path).fingerprint != tokenizer.fingerprint:
            raise ConfigurationError(f"folder={path} holds another tokenizer; name another folder, or remove it.")
        return path
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        tokenizer.save(aside)
        fsync_all(aside)
        rename_durably(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path
