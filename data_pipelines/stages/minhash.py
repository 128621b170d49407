"""Drop all but one of near-duplicate documents, by MinHash over phrases of words, with datatrove's steps.

Broder 1997; the banding and its defaults (14 bands of 8 hashes, phrases of 5 words) are FineWeb's, arXiv:2406.17557,
section 3.4. Two documents with an overlap s of their phrases (the share of both in either) meet in a band with
probability 1 - (1 - s^8)^14: 0.06 at s=0.5, 0.56 at 0.7, 0.92 at 0.8, 0.9999 at 0.9.
"""

import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

from data_pipelines.sources.base import Document
from data_pipelines.stages.pieces import Pieces
from data_pipelines.stages.stage import OF_DATATROVE, PipelineJob, Scope, Stage, content_of, silence_datatrove
from lmtrain.missing_package import require_package

REASON = "near duplicate"
LINES_TO_BUFFER = 1000


@final
class MinHashDeduplication(Stage):
    """Keeps one of each cluster of near duplicates; a document of fewer words than a phrase has none."""

    scope: Scope = "corpus"

    def __init__(
        self,
        *,
        num_bands: int = 14,
        hashes_per_band: int = 8,
        words_per_phrase: int = 5,
        tasks_per_band: int = 1,
        language: str = "eng",
        seed: int = 1,
    ) -> None:
        """More bands find more, more hashes a band find less; `language`: a code with word cuts in datatrove."""
        numbers = {"num_bands": num_bands, "hashes_per_band": hashes_per_band, "words_per_phrase": words_per_phrase}
        require_package("deduplicate=minhash", *OF_DATATROVE, extra="data")
        self._tasks_per_band = tasks_per_band
        self._settings: dict[str, Any] = {**numbers, "language": language, "seed": seed}

    def jobs(self, pieces: Pieces, folder: Path) -> tuple[PipelineJob, ...]:
        """Return three: a signature for each document, the pairs of each band, and the clusters of pairs."""
        num_pairs_tasks = self._settings["num_bands"] * self._tasks_per_band
        return (
            PipelineJob("minhash_signatures", pieces.count, partial(self._write_signatures, pieces, folder)),
            PipelineJob("minhash_pairs", num_pairs_tasks, partial(self._write_pairs, folder, num_pairs_tasks)),
            PipelineJob("minhash_clusters", 1, partial(self._write_removed, folder)),
        )

    def removed(self, folder: Path, piece: int) -> Mapping[int, str]:
        """Return the places in a piece of documents represented by a near duplicate."""
        path = folder / "removed" / f"{piece:06d}.remove"
        if not path.exists():
            return {}
        return {place: REASON for (place,) in struct.iter_unpack("<I", path.read_bytes())}

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the deciding settings: all but the number of tasks."""
        return {"stage": "minhash", "keeps": "first", **self._settings}

    def _write_signatures(self, pieces: Pieces, folder: Path, piece: int) -> None:
        """Write the hashes of a piece's documents, band by band, in order; a dropped document has none."""
        from datatrove.data import Document as Page  # pyright: ignore[reportMissingImports]  # an extra

        texts = (content_of(item) if isinstance(item, Document) else "" for item in pieces.items(piece))
        step = self._step("Signature", folder, output_folder="signatures", language=self._settings["language"])
        step.run((Page(text=text, id="") for text in texts), rank=piece, world_size=pieces.count)

    def _write_pairs(self, folder: Path, num_tasks: int, task: int) -> None:
        """Write the pairs with a common band."""
        folders = {"input_folder": "signatures", "output_folder": "pairs"}
        self._step("Buckets", folder, **folders, lines_to_buffer=LINES_TO_BUFFER).run(None, task, num_tasks)

    def _write_removed(self, folder: Path, task: int) -> None:
        """Write the documents to drop of each piece: all of a cluster but the one read first.

        datatrove itself keeps whichever joined most pairs, and so may drop a held-out document for its copy.
        """
        folders = {"input_folder": "pairs", "output_folder": "clusters"}
        step = self._step("Cluster", folder, **folders, save_cluster_id=True, lines_to_buffer=LINES_TO_BUFFER)
        step.run(None, task, 1)
        removed = folder / "removed"
        removed.mkdir(exist_ok=True)
        met: set[int] = set()
        for path in sorted((folder / "clusters").glob("*.clusters")):
            later = bytearray()
            for place, cluster in struct.iter_unpack("<II", path.read_bytes()):
                if cluster in met:
                    later += struct.pack("<I", place)
                met.add(cluster)
            (removed / f"{path.stem}.remove").write_bytes(later)

    def _step(self, name: str, folder: Path, **options: Any) -> Any:
        """Return a step of datatrove's; its folders are inside `folder`."""
        from datatrove.pipeline.dedup import minhash  # pyright: ignore[reportMissingImports]  # an extra

        silence_datatrove()
        config: Any = minhash.MinhashConfig(
            n_grams=self._settings["words_per_phrase"],
            num_buckets=self._settings["num_bands"],
            hashes_per_bucket=self._settings["hashes_per_band"],
            seed=self._settings["seed"],
        )
        placed = {key: str(folder / to) if key.endswith("_folder") else to for key, to in options.items()}
        return getattr(minhash, f"MinhashDedup{name}")(config=config, **placed)
