"""Drop all but one of near-duplicate documents, by MinHash over phrases of words, with datatrove's steps.

Broder 1997; the banding and its defaults (14 bands of 8 hashes, phrases of 5 words) are FineWeb's, arXiv:2406.17557,
section 3.4. Two documents with an overlap s of their phrases (the share of both in either) meet in a band with
probability 1 - (1 - s^8)^14: 0.06 at s=0.5, 0.56 at 0.7, 0.92 at 0.8, 0.9999 at 0.9.
"""

import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from data_pipelines.extras import require_extra, silence_datatrove
from data_pipelines.sources.base import Document
from data_pipelines.stages.pieces import Remaining, cut_into_pieces
from data_pipelines.stages.stage import Item, Pieces, PipelineJob, Scope, content_of
from lmtrain.errors import ConfigurationError

REASON = "near duplicate"
LINES_TO_BUFFER = 1000


@final
class MinHashDeduplication:
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
        """More bands find more, more hashes a band find less; `language`: a code with word cuts in datatrove.

        Raises:
            ConfigurationError: Not a positive number.
            EnvironmentProblem: The extra is not installed.
        """
        numbers = {"num_bands": num_bands, "hashes_per_band": hashes_per_band, "words_per_phrase": words_per_phrase}
        for name, number in {**numbers, "tasks_per_band": tasks_per_band}.items():
            if number < 1:
                raise ConfigurationError(f"deduplicate.minhash.{name}={number} must be positive; nearest valid: 1.")
        require_extra("deduplicate=minhash")
        self._num_bands = num_bands
        self._hashes_per_band = hashes_per_band
        self._words_per_phrase = words_per_phrase
        self._tasks_per_band = tasks_per_band
        self._language = language
        self._seed = seed

    def chance(self, similarity: float) -> float:
        """Return the probability of finding two documents of this overlap in one band at least."""
        return 1 - (1 - similarity**self._hashes_per_band) ** self._num_bands

    def __call__(self, documents: Iterable[Item], /) -> Iterator[Item]:
        """Yield one of each cluster and the rest as dropped, decided here and now on this machine's disk."""
        silence_datatrove()
        with tempfile.TemporaryDirectory(prefix="minhash-") as name:
            folder = Path(name)
            pieces = cut_into_pieces(folder / "pieces", documents)
            for job in self.jobs(pieces, folder):
                for task in range(job.num_tasks):
                    job.run(task)
            rest = Remaining(pieces, [(self, folder)])
            for piece in range(pieces.count):
                yield from rest.items(piece)

    def jobs(self, pieces: Pieces, folder: Path) -> tuple[PipelineJob, ...]:
        """Return three: a signature for each document, the pairs of each band, and the clusters of pairs."""
        num_pairs_tasks = self._num_bands * self._tasks_per_band
        return (
            PipelineJob("minhash_signatures", pieces.count, _Signatures(self, pieces, folder)),
            PipelineJob("minhash_pairs", num_pairs_tasks, _Pairs(self, folder, num_pairs_tasks)),
            PipelineJob("minhash_clusters", 1, _Clusters(self, folder)),
        )

    def removed(self, folder: Path, piece: int) -> Mapping[int, str]:
        """Return the places in a piece of documents represented by a near duplicate."""
        path = folder / "removed" / f"{piece:06d}.remove"
        if not path.exists():
            return {}
        return {place: REASON for (place,) in struct.iter_unpack("<I", path.read_bytes())}

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the deciding settings: all but the number of tasks."""
        parts = {name.removeprefix("_"): value for name, value in vars(self).items()}
        del parts["tasks_per_band"]
        return {"stage": "minhash", "keeps": "first", **parts}

    def config(self) -> Any:
        """Return datatrove's settings for this."""
        from datatrove.pipeline.dedup.minhash import MinhashConfig  # pyright: ignore[reportMissingImports]  # an extra

        return MinhashConfig(
            n_grams=self._words_per_phrase,
            num_buckets=self._num_bands,
            hashes_per_bucket=self._hashes_per_band,
            seed=self._seed,
        )

    @property
    def language(self) -> str:
        """Return the language of its words."""
        return self._language


@dataclass(frozen=True)
class _Signatures:
    stage: MinHashDeduplication
    pieces: Pieces
    folder: Path

    def __call__(self, piece: int) -> None:
        """Write the hashes of a piece's documents, band by band, in order; a dropped document has none."""
        from datatrove.data import Document as Page  # pyright: ignore[reportMissingImports]  # an extra
        from datatrove.pipeline.dedup.minhash import MinhashDedupSignature  # pyright: ignore[reportMissingImports]  # an extra

        texts = (content_of(item) if isinstance(item, Document) else "" for item in self.pieces.items(piece))
        step = MinhashDedupSignature(
            output_folder=str(self.folder / "signatures"), config=self.stage.config(), language=self.stage.language
        )
        step.run((Page(text=text, id="") for text in texts), rank=piece, world_size=self.pieces.count)  # pyright: ignore


@dataclass(frozen=True)
class _Pairs:
    stage: MinHashDeduplication
    folder: Path
    num_tasks: int

    def __call__(self, task: int) -> None:
        """Write the pairs with a common band."""
        from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets  # pyright: ignore[reportMissingImports]  # an extra

        MinhashDedupBuckets(
            input_folder=str(self.folder / "signatures"),
            output_folder=str(self.folder / "pairs"),
            config=self.stage.config(),
            lines_to_buffer=LINES_TO_BUFFER,
        ).run(None, task, self.num_tasks)  # pyright: ignore


@dataclass(frozen=True)
class _Clusters:
    stage: MinHashDeduplication
    folder: Path

    def __call__(self, task: int) -> None:
        """Write the documents to drop of each piece: all of a cluster but the one read first.

        datatrove itself keeps whichever joined most pairs, and so may drop a held-out document for its copy.
        """
        from datatrove.pipeline.dedup.minhash import MinhashDedupCluster  # pyright: ignore[reportMissingImports]  # an extra

        clusters = self.folder / "clusters"
        MinhashDedupCluster(
            input_folder=str(self.folder / "pairs"),
            output_folder=str(clusters),
            config=self.stage.config(),
            save_cluster_id=True,
            lines_to_buffer=LINES_TO_BUFFER,
        ).run(None, task, 1)  # pyright: ignore
        removed = self.folder / "removed"
        removed.mkdir(exist_ok=True)
        met: set[int] = set()
        for path in sorted(clusters.glob("*.clusters")):
            later = bytearray()
            for place, cluster in struct.iter_unpack("<II", path.read_bytes()):
                if cluster in met:
                    later += struct.pack("<I", place)
                met.add(cluster)
            (removed / f"{path.stem}.remove").write_bytes(later)
