"""Near duplicates are found as often as published."""

import random
from functools import partial

import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.minhash import MinHashDeduplication
from data_pipelines.stages.pieces import cut_into_pieces
from tests.data_pipelines.corpus import GOOD, NEAR, kept, reasons, with_words_changed


@pytest.fixture(autouse=True)
def extra():
    pytest.importorskip("datatrove.pipeline.dedup.minhash")
    pytest.importorskip("spacy")


def run(stage, documents, folder, *, piece_characters=10**9):
    """Run a stage's jobs over pieces, tasks in reverse, and return the items."""
    pieces = cut_into_pieces(folder / "pieces", documents, piece_characters=piece_characters)
    for job in stage.jobs(pieces, folder):
        for task in reversed(range(job.num_tasks)):
            job.run(task)
    rest = pieces.without(partial(stage.removed, folder))
    return [item for piece in range(pieces.count) for item in rest.items(piece)]


def test_near_duplicates_are_dropped_in_their_places_and_nothing_else_is(tmp_path):
    documents = [*GOOD, Skipped("x", "why"), *NEAR, Document("short", "too short to tell")]
    items = run(MinHashDeduplication(), documents, tmp_path)
    assert [item.id for item in items] == [document.id for document in documents]
    assert reasons(items) == {"why": 1, "near duplicate": len(NEAR)}
    assert "short" in kept(items)
    assert not {near.id for near in NEAR} & {*kept(items)}, "the first of a cluster stays"


def test_the_first_of_a_long_cluster_stays_whichever_joins_most_pairs(tmp_path):
    chains = [[with_words_changed(good.text, 6, seed=seed) for seed in range(1, 6)] for good in GOOD[:8]]
    copies = [Document(f"copy_{number}", text) for number, chain in enumerate(chains) for text in chain]
    assert {good.id for good in GOOD[:8]} <= {*kept(run(MinHashDeduplication(), [*GOOD[:8], *copies], tmp_path))}


@pytest.mark.parametrize(("piece_characters", "tasks_per_band"), [(10**9, 1), (9000, 3)])
def test_pieces_and_tasks_do_not_decide_what_stays(tmp_path, piece_characters, tasks_per_band):
    documents = [*GOOD[:20], *NEAR, *[Document(f"again_{near.id}", near.text + " and so on") for near in NEAR]]
    stage = MinHashDeduplication(num_bands=4, hashes_per_band=2, tasks_per_band=tasks_per_band)
    items = run(stage, documents, tmp_path / "a", piece_characters=piece_characters)
    assert items == run(MinHashDeduplication(num_bands=4, hashes_per_band=2), documents, tmp_path / "b")


def pair(overlap, rng, num_phrases=200):
    """Return two texts of single-word phrases of which so large a share is common to both."""
    common = round(num_phrases * 2 * overlap / (1 + overlap))
    names = ["".join(rng.choices("abcdefghijklmnop", k=12)) for _ in range(2 * num_phrases - common)]
    first, second = names[:num_phrases], names[:common] + names[num_phrases:]
    return " ".join(first), " ".join(second), len({*first} & {*second}) / len({*first} | {*second})


@pytest.mark.slow
def test_pairs_are_found_as_often_as_the_formula_of_the_bands_says(tmp_path):
    rng = random.Random(0)
    stage = MinHashDeduplication(num_bands=6, hashes_per_band=3, words_per_phrase=1)
    for overlap in (0.3, 0.5, 0.7):
        num_pairs, documents, similarities = 200, [], []
        for number in range(num_pairs):
            first, second, similarity = pair(overlap, rng)
            similarities.append(similarity)
            documents += [Document(f"{number}a", first), Document(f"{number}b", second)]
        found = reasons(run(stage, documents, tmp_path / f"{overlap}")).get("near duplicate", 0) / num_pairs
        expected = sum(1 - (1 - similarity**3) ** 6 for similarity in similarities) / num_pairs
        five_sigma = 5 * (expected * (1 - expected) / num_pairs) ** 0.5
        assert abs(found - expected) < five_sigma
