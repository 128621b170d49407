"""From whole shards to a whole data set: held-out references, the manifest, and a look at every byte."""

from collections.abc import Mapping
from pathlib import Path

from data_pipelines.progress import stage
from data_pipelines.stages.references import compress
from data_pipelines.stages.split import TRAIN
from data_pipelines.stages.verify import num_bytes, problems
from lmtrain.data.manifest import Manifest, References, SplitManifest
from lmtrain.data.shard_writer import write_manifest
from lmtrain.data.shards import TokenSplit
from lmtrain.errors import DataError
from lmtrain.tokenizers.base import Tokenizer


def references_of(
    folder: Path, splits: Mapping[str, SplitManifest], *, dtype: str, tokenizer: Tokenizer
) -> dict[str, References]:
    """Return the compressors' results on the held-out text."""
    references: dict[str, References] = {}
    for split, manifest in splits.items():
        if split != TRAIN:
            with stage(f"compress {split}") as progress:
                tokens = TokenSplit(folder, dtype=dtype, split=manifest)
                reached = references[split] = compress(tokens, tokenizer)
                rates = f"gzip -9 {reached.gzip_bits_per_byte:.3f}, xz -9e {reached.xz_bits_per_byte:.3f} bits per byte"
                progress.notes.append(rates)
    return references


def write_verified(folder: Path, manifest: Manifest) -> None:
    """Write the manifest and hold every byte against it.

    Raises:
        DataError: It does not verify: a defect of this program, or of the machine.
    """
    write_manifest(folder, manifest)
    with stage("verify", total_bytes=num_bytes(folder)) as progress:
        found = list(problems(folder, advance=lambda read: progress.advance(text_bytes=read)))
        if found:
            raise DataError(f"the tokens do not verify: {found[0]} ({len(found)} problems). Please report this.")
