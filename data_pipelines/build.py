"""Fill a folder with one data set, as a stream: after any end, the next build continues from there.

source -> stages -> split -> blocks -> (learn a tokenizer) -> encode -> shards -> references -> manifest -> verify
"""

import lzma
import shutil
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

from data_pipelines.build_request import CODE_VERSION, BuildRequest
from data_pipelines.progress import stage
from data_pipelines.shard_filler import REMOVED, Filled, fill_shards
from data_pipelines.stages.split import TRAIN
from data_pipelines.stages.stage import Engine
from data_pipelines.verify import problems
from data_pipelines.work_folder import WorkFolder
from lmtrain.accounting.quantities import format_count
from lmtrain.data.dataset_folder import notify
from lmtrain.data.manifest import Manifest, References, SplitManifest
from lmtrain.data.shard_writer import write_manifest
from lmtrain.data.shards import TokenSplit
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.base import Tokenizer

MAX_REFERENCE_BYTES = 4_000_000  # xz -9e reads about 1.5 MB/s
LEAST_DICTIONARY_BYTES = 1 << 16


class ShortSource(DataError):
    """The source ended before the budget; its encoded part is kept."""


@final
@dataclass(frozen=True)
class Build:
    """One preparation, ready to run.

    `num_processes` None decides by cores and text; `allow_short` accepts a source shorter than the budget;
    `references` compresses the held-out text.
    """

    request: BuildRequest
    engine: Engine
    num_processes: int | None = None
    allow_short: bool = False
    references: bool = True

    def __call__(self, folder: Path) -> None:
        """Fill a folder, continuing from where an earlier build of the same left it.

        Raises:
            DataError: No text, too little text, text that changed meanwhile, or tokens that do not verify.
        """
        request, work = self.request, WorkFolder(folder)
        source = request.source
        try:
            source.check()
            notify(f"preparing {source.name}")
            if work.begin(request.fingerprint):
                notify(f"  continuing the work in {folder}")
            filled = fill_shards(
                request,
                self.engine,
                work,
                num_processes=self.num_processes,
            )
            self._require_splits(filled)
            self._require_budget(filled)
            write_verified(folder, self._manifest(work, filled))
            self._require_same_source()
        except ShortSource:
            raise
        except (ConfigurationError, DataError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        work.finish()

    def _require_same_source(self) -> None:
        source = self.request.source
        if source.fingerprint() != self.request.source_fingerprint:
            raise DataError(f"source {source.name} changed while it was prepared; run the same command again.")

    def _manifest(self, work: WorkFolder, filled: Filled) -> Manifest:
        request, tokenizer = self.request, work.tokenizer()
        dtype = request.token_dtype
        held_out = filled.splits if self.references else {}
        return Manifest(
            name=request.source.name,
            dtype=dtype,
            vocab_size=tokenizer.vocab_size,
            tokenizer_fingerprint=tokenizer.fingerprint,
            splits=filled.splits,
            references=references_of(work.folder, held_out, dtype=dtype, tokenizer=tokenizer),
            source=request.source.name,
            source_fingerprint=request.source_fingerprint,
            code_version=CODE_VERSION,
            settings=request.settings_as_json(),
            dropped={reason: count for reason, count in sorted(filled.dropped.items()) if reason != REMOVED},
            repaired={reason: count for reason, count in filled.dropped.items() if reason == REMOVED},
        )

    def _require_splits(self, filled: Filled) -> None:
        held_out = self.request.held_out
        missing = next((split for split in held_out.splits if split not in filled.splits), None)
        if missing is None:
            return
        left_out = ", ".join(
            f"{count:,} {reason} ({', '.join(filled.first[reason])})"
            for reason, count in sorted(filled.dropped.items())
        )
        dropped = f" (left out: {left_out})" if left_out else ""
        num_documents = sum(split.num_documents for split in filled.splits.values())
        if num_documents == 0:
            raise DataError(
                f"source {self.request.source.name} gives no document{dropped}; give it more, or clean less."
            )
        fix = "name other text with source.validation_paths, or " if held_out.is_named and missing != TRAIN else ""
        rule = f"none of {format_count(num_documents, 'document')} fell into the {missing} split{dropped}"
        raise DataError(f"{rule}; {fix}give it more documents.")

    def _require_budget(self, filled: Filled) -> None:
        budget, reached = self.request.token_budget, filled.splits[TRAIN].num_tokens
        if budget is None or reached >= budget:
            return
        ended = f"source {self.request.source.name} ended after {reached:,} of the {budget:,} tokens to train on"
        if not self.allow_short:
            fix = "use all of it with data.folder.allow_short=true, or ask for less"
            raise ShortSource(f"{ended} (budget.tokens, data.folder.token_budget); the encoded part is kept: {fix}.")
        notify(f"  {ended}")


def references_of(
    folder: Path, splits: Mapping[str, SplitManifest], *, dtype: str, tokenizer: Tokenizer
) -> dict[str, References]:
    """Return what gzip and xz make of each held-out split."""
    held_out = {split: manifest for split, manifest in splits.items() if split != TRAIN}
    if not held_out:
        return {}
    with stage("compress held-out") as progress, ThreadPoolExecutor(max_workers=len(held_out)) as executor:
        tokens = [TokenSplit(folder, dtype=dtype, split=manifest) for manifest in held_out.values()]
        found = dict(zip(held_out, executor.map(lambda each: compress(each, tokenizer), tokens), strict=True))
        for split, result in found.items():
            rates = f"gzip -9 {result.gzip_bits_per_byte:.3f}, xz -9e {result.xz_bits_per_byte:.3f}"
            progress.notes.append(f"{split} {rates} bits per byte")
    return found


def compress(tokens: TokenSplit, tokenizer: Tokenizer) -> References:
    """Compress the first 4 MB of a split's documents, back to back, as `gzip -9` and `xz -9e` do."""
    ids = tokens.window(0, min(tokens.num_tokens, MAX_REFERENCE_BYTES))  # a special token has no byte
    content = tokenizer.decode_bytes(ids.tolist())[:MAX_REFERENCE_BYTES]
    packed = zlib.compress(content, level=9, wbits=31), _xz(content)  # 31: a gzip header without a name or a time
    gzip, xz = (round(len(each) * 8 / len(content), 4) for each in packed)
    return References(text_bytes=len(content), gzip_bits_per_byte=gzip, xz_bits_per_byte=xz)


def write_verified(folder: Path, manifest: Manifest) -> None:
    """Write the manifest and check every byte against it."""
    write_manifest(folder, manifest)
    with stage("verify") as progress:
        found = list(problems(folder, advance=lambda read: progress.advance(text_bytes=read)))
        if found:
            raise DataError(f"the tokens do not verify: {found[0]} ({len(found)} problems). Please report this.")


def _xz(text: bytes) -> bytes:
    # A dictionary of 64 MB has tables of 600; one as long as the text finds the same matches.
    dict_size = max(1 << (len(text) - 1).bit_length(), LEAST_DICTIONARY_BYTES)
    preset = 9 | lzma.PRESET_EXTREME
    return lzma.compress(text, filters=[{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": dict_size}])
