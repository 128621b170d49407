"""Fill a folder with one data set: the stages of a preparation, in order."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import final

from data_pipelines.progress import stage, tell
from data_pipelines.sources.base import Source
from data_pipelines.stages.clean import Cleaning
from data_pipelines.stages.encode import encode_split
from data_pipelines.stages.references import compress
from data_pipelines.stages.split import SPLITS, TRAIN, HeldOut, place_of, split_documents
from data_pipelines.stages.spool import Part, Spool
from data_pipelines.stages.train_tokenizer import TokenizerSpec
from data_pipelines.stages.verify import problems, sample_problems
from lmtrain.data.manifest import Manifest, References, SplitManifest
from lmtrain.data.shard_writer import write_manifest
from lmtrain.data.shards import TOKENIZER_FOLDER, open_dataset
from lmtrain.errors import DataError
from lmtrain.tokenizers.base import Tokenizer

CODE_VERSION = 1  # raised when the same settings come to make other tokens
MANY_CORES = 8  # beyond, threads that share one tokenizer get in one another's way
MANY_BYTES = 64_000_000

PartsOfSplits = Mapping[str, tuple[Part, ...]]


@dataclass(frozen=True)
class Settings:
    """What decides the tokens besides the text and the tokenizer."""

    held_out: HeldOut
    min_document_characters: int
    shard_tokens: int
    token_dtype: str


@final
@dataclass(frozen=True)
class Build:
    """One preparation, ready to run; `num_processes` None decides by cores and text."""

    source: Source
    source_fingerprint: str
    spec: TokenizerSpec
    settings: Settings
    num_processes: int | None = None

    def __call__(self, folder: Path) -> None:
        """Fill an empty folder.

        Raises:
            DataError: No text, too little text, text that changed meanwhile, or tokens that do not verify.
        """
        tell(f"preparing {self.source.name}")
        ready = None if self.spec.sample_bytes else self.spec.build(())
        spool = folder / ".spool"
        spool.mkdir()
        parts, dropped = self._collect(spool)
        tokenizer = ready or self._train_tokenizer(parts[TRAIN])
        tokenizer.save(folder / TOKENIZER_FOLDER)
        manifest = Manifest(
            name=self.source.name,
            dtype=self.settings.token_dtype,
            vocab_size=tokenizer.vocab_size,
            tokenizer_fingerprint=tokenizer.fingerprint,
            splits={split: self._encode(folder, split, parts[split]) for split in parts},
            references=_compress(parts),
            source=self.source.name,
            source_fingerprint=self.source_fingerprint,
            code_version=CODE_VERSION,
            settings={**asdict(self.settings), "tokenizer": self.spec.fingerprint_parts()},
            dropped=dropped,
        )
        write_manifest(folder, manifest)
        _verify(folder, parts)
        shutil.rmtree(spool)
        if self.source.fingerprint() != self.source_fingerprint:
            raise DataError(f"source {self.source.name} changed while it was prepared; run the same command again.")

    def _collect(self, spool_folder: Path) -> tuple[PartsOfSplits, Mapping[str, int]]:
        spool = Spool(spool_folder)
        cleaning = Cleaning(min_document_characters=self.settings.min_document_characters)
        with stage("clean and split") as progress:
            documents = cleaning(self.source.documents())
            for split, document in split_documents(documents, held_out=self.settings.held_out, tell=tell):
                progress.advance(documents=1, text_bytes=spool.append(split, document))
            dropped = dict(sorted(cleaning.dropped.items()))
            progress.notes += [f"{count:,} dropped ({reason})" for reason, count in dropped.items()]
        parts = spool.finish()
        missing = [split for split in self.settings.held_out.splits if split not in parts]
        if missing:
            raise DataError(self._why_empty(missing, parts, dropped))
        return {split: parts[split] for split in SPLITS if split in parts}, dropped

    def _why_empty(self, missing: list[str], parts: PartsOfSplits, dropped: Mapping[str, int]) -> str:
        if not parts:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "it holds none"
            fix = "give it text, or lower data.folder.min_document_characters"
            return f"source {self.source.name} gives no document: {reasons}; {fix}."
        num_documents = sum(part.num_documents for part in chain.from_iterable(parts.values()))
        rule = f"none of {num_documents:,} documents fell into the {missing[0]} split by its hash"
        return f"data.folder.{missing[0]}_fraction is too small: {rule}; nearest valid: {2 / num_documents:.1g}."

    def _train_tokenizer(self, parts: tuple[Part, ...]) -> Tokenizer:
        train_bytes = sum(part.text_bytes for part in parts)
        with stage("tokenizer") as progress:
            tokenizer = self.spec.build(_sample(parts, min(1.0, self.spec.sample_bytes / train_bytes)))
            num_used = sum(1 for piece in tokenizer.bytes_of_ids() if piece)
            progress.notes.append(f"{tokenizer.vocab_size:,} entries")
            if num_used < 0.9 * tokenizer.vocab_size:
                progress.notes.append(
                    f"only {num_used:,} in use: so little text needs no more, see tokenizer.vocab_size"
                )
        return tokenizer

    def _encode(self, folder: Path, split: str, parts: tuple[Part, ...]) -> SplitManifest:
        total_bytes = sum(part.text_bytes for part in parts)
        with stage(f"encode {split}", total_bytes=total_bytes) as progress:
            return encode_split(
                parts,
                folder=folder,
                split=split,
                tokenizer_folder=folder / TOKENIZER_FOLDER,
                dtype=self.settings.token_dtype,
                shard_tokens=self.settings.shard_tokens,
                num_processes=_fitting_processes(self.num_processes, total_bytes),
                advance=lambda part, tokens: progress.advance(
                    documents=part.num_documents, tokens=tokens, text_bytes=part.text_bytes
                ),
            )


def _sample(parts: tuple[Part, ...], fraction: float) -> Iterator[str]:
    documents = chain.from_iterable(part.documents() for part in parts)
    return (document.text for document in documents if fraction == 1 or place_of(f"sample {document.id}") < fraction)


def _fitting_processes(wanted: int | None, text_bytes: int) -> int:
    if wanted is not None:
        return wanted
    num_cores = os.cpu_count() or 1
    return num_cores if num_cores > MANY_CORES and text_bytes > MANY_BYTES else 0


def _compress(parts: PartsOfSplits) -> dict[str, References]:
    references: dict[str, References] = {}
    for split in parts:
        if split != TRAIN:
            with stage(f"compress {split}") as progress:
                reached = references[split] = compress(parts[split])
                rates = f"gzip -9 {reached.gzip_bits_per_byte:.3f}, xz -9e {reached.xz_bits_per_byte:.3f} bits per byte"
                progress.notes.append(rates)
    return references


def _verify(folder: Path, parts: PartsOfSplits) -> None:
    dataset = open_dataset(folder)
    with stage("verify") as progress:
        samples = chain.from_iterable(sample_problems(dataset, split, parts[split]) for split in parts)
        found = Counter(chain(problems(dataset), samples))
        if found:
            raise DataError(
                f"the tokens do not verify: {next(iter(found))} ({len(found)} problems). Please report this."
            )
        progress.advance(tokens=sum(split.num_tokens for split in dataset.manifest.splits.values()))
