"""Mixtures read each source by its weight."""

import numpy as np
import pytest

from lmtrain.data.interleave import ScheduledInterleave
from lmtrain.data.mixture import MixedRows, mean_shares, open_mixture, parse_schedule, parse_sources
from lmtrain.data.packing import BestFit, Contiguous
from lmtrain.errors import ConfigurationError, DataError
from tests.data.documents import make_dataset


@pytest.fixture
def folders(tmp_path):
    """Two data sets that share no id but end-of-text: 4 ids apart, so that a row tells its source."""
    make_dataset(tmp_path / "web", [20] * 30, name="web")
    make_dataset(tmp_path / "math", [30] * 7, name="math", shard_tokens=40)
    return {name: {"path": str(tmp_path / name), "weight": weight} for name, weight in (("web", 3), ("math", 1))}


def mixed_rows(folders, packing=Contiguous(), seed=0):  # noqa: B008  # frozen
    mixture = open_mixture(folders)
    rows = [packing.rows(dataset, context_tokens=8) for dataset in mixture.datasets.values()]
    weights = list(mixture.phases[0].weights.values())
    return rows, MixedRows(rows, interleave=ScheduledInterleave([(0, weights)]), seed=seed, dtype="uint16")


def test_each_source_has_its_share_and_reads_every_window_once_an_epoch(folders):
    rows, mixed = mixed_rows(folders)
    num_web, num_math = (source.num_rows for source in rows)
    assert mixed.num_rows == num_web + num_math
    order = mixed.order(np.arange(4 * num_math))
    math = order[order >= num_web]
    assert sorted(math.tolist()) == list(range(num_web, num_web + num_math))
    web = order[order < num_web]
    assert len(web) == 3 * num_math
    assert len(set(web[:num_web].tolist())) == num_web


def test_rows_are_those_of_their_sources_in_the_order_asked(folders):
    rows, mixed = mixed_rows(folders)
    wanted = np.array([rows[0].num_rows + 2, 5, rows[0].num_rows, 0])
    expected = [
        rows[1].read(np.array([2])),
        rows[0].read(np.array([5])),
        rows[1].read(np.array([0])),
        rows[0].read(np.array([0])),
    ]
    assert mixed.sources_of(wanted).tolist() == [1, 0, 1, 0]
    assert mixed.read(wanted).ids.tolist() == [row.ids[0].tolist() for row in expected]


def test_documents_and_loss_masks_come_along(folders):
    rows, mixed = mixed_rows(folders, BestFit(document_mask=True))
    wanted = np.arange(mixed.num_rows)[::-1]
    batch = mixed.read(wanted)
    apart = [source.read(np.arange(source.num_rows)) for source in rows]
    for name in ("ids", "documents", "loss_mask"):
        joined = np.concatenate([getattr(part, name) for part in apart])[::-1]
        assert (getattr(batch, name) == joined).all()


def test_the_order_of_a_source_does_not_depend_on_the_weights(folders):
    first, second = mixed_rows(folders), mixed_rows({**folders, "web": {**folders["web"], "weight": 1}})
    orders = [mixed.order(np.arange(80)) for _, mixed in (first, second)]
    num_web = first[0][0].num_rows
    math = [order[order >= num_web] for order in orders]
    shorter = min(len(part) for part in math)
    assert math[0][:shorter].tolist() == math[1][:shorter].tolist()


def test_tokens_of_two_tokenizers_are_refused_by_both_names(folders, tmp_path):
    make_dataset(tmp_path / "other", [9], tokenizer="0" * 64)
    folders["other"] = {"path": str(tmp_path / "other")}
    message = r"data\.sources\.other: .*tokenizer of web .*got 000000000000; .*tokenizer\.path=.*web"
    with pytest.raises(DataError, match=message):
        open_mixture(folders)


SOURCES = {"web": {"path": "a", "weight": 0.7}, "math": {"path": "b", "weight": 0.3}}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({}, r"data\.sources is empty; .*data\.sources\.web\.path=FOLDER"),
        ({"web": 3}, r"data\.sources\.web: must have path and weight, got 3"),
        ({"web": {"weight": 1}}, r"data\.sources\.web\.path: must be a prepared folder"),
        ({"web": {"path": "a", "wieght": 1}}, r"data\.sources\.web\.wieght: .*Did you mean 'weight'"),
        *(({"web": {"path": "a", "weight": bad}}, r"web\.weight: must be a number of at least 0")
          for bad in (-0.5, "much", float("nan"), True)),
    ],
)  # fmt: skip
def test_a_source_that_is_none_is_refused(sources, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_sources(sources)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([{"from": 0, "weights": {"web": 1}}], r"data\.schedule\.0\.from: must be a fraction of the run after 0"),
        ([{"from": 1.5, "weights": {"web": 1}}], r"from: .* got 1\.5"),
        ([{"from": x, "weights": {"web": 1}} for x in (0.9, 0.5)], r"schedule\.1\.from: .*after 0\.9"),
        ([{"weights": {"web": 1}}], r"from: .* got null"),
        ([{"from": 0.9, "weights": {"mth": 1}}], r"weights\.mth: .*Did you mean 'math'"),
        ([{"from": 0.9, "weights": {"math": -1}}], r"schedule\.0\.weights\.math: must be a number"),
        ([{"from": 0.9, "weights": {}}], r"data\.schedule\.0\.weights: must be above 0 .* got web=0, math=0"),
        ([{"from": 0.9, "wait": {}}], r"data\.schedule\.0\.wait: must be one of from, weights"),
    ],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_refused(schedule, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_schedule(parse_sources(SOURCES), schedule)


def test_a_sources_share_of_the_run_is_the_mean_over_its_phases():
    phases = parse_schedule(parse_sources(SOURCES), [{"from": 0.75, "weights": {"math": 2}}])
    shares = mean_shares(phases)
    assert sum(shares.values()) == pytest.approx(1)
    first = phases[0].weights["math"] / sum(phases[0].weights.values())
    assert shares["math"] == pytest.approx(0.75 * first + 0.25)
