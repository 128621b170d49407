"""From whole shards to a whole data set: held-out references, the manifest, and a look at every byte."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
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
    """Return the compressors' results on the held-out text, of all splits at once: they hold no lock of Python."""
    held_out = {split: manifest for split, manifest in splits.items() if split != TRAIN}
    if not held_out:
        return {}
    with stage("compress held-out") as progress, ThreadPoolExecutor(max_workers=len(held_out)) as executor:
        tokens = [TokenSplit(folder, dtype=dtype, split=manifest) for manifest in held_out.values()]
        reached = executor.map(lambda each: compress(each, tokenizer), tokens)
        references = dict(zip(held_out, reached, strict=True))
        for split, result in references.items():
            rates = f"gzip -9 {result.gzip_bits_per_byte:.3f}, xz -9e {result.xz_bits_per_byte:.3f}"
            progress.notes.append(f"{split} {rates} bits per byte")
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
