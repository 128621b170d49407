import numpy as np
import pytest

from lmtrain.data.interleave import ScheduledInterleave
from lmtrain.data.mixture import MixedRows, open_mixture, single_source
from lmtrain.data.packing import BestFit, Contiguous
from lmtrain.data.rows import read_rows
from lmtrain.errors import DataError
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
        read_rows(rows[1], np.array([2])),
        read_rows(rows[0], np.array([5])),
        read_rows(rows[1], np.array([0])),
        read_rows(rows[0], np.array([0])),
    ]
    assert mixed.sources_of(wanted).tolist() == [1, 0, 1, 0]
    assert read_rows(mixed, wanted).ids.tolist() == [row.ids[0].tolist() for row in expected]


def test_documents_and_loss_masks_come_along(folders):
    rows, mixed = mixed_rows(folders, BestFit(document_mask=True))
    wanted = np.arange(mixed.num_rows)[::-1]
    batch = read_rows(mixed, wanted)
    apart = [read_rows(source, np.arange(source.num_rows)) for source in rows]
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
    message = r"data\.sources\.other \(.*other\) was encoded with tokenizer 000000000000, data\.sources\.web \(.*web\)"
    with pytest.raises(DataError, match=message):
        open_mixture(folders)


def test_a_mixture_of_one_has_its_fingerprint(tmp_path, folders):
    dataset = make_dataset(tmp_path / "one", [9])
    assert single_source(dataset).fingerprint == dataset.manifest.fingerprint
    assert single_source(dataset).main == dataset
    both = open_mixture(folders)
    assert both.fingerprint not in {dataset.manifest.fingerprint for dataset in both.datasets.values()}
    assert both.describe_weights() == "web 0.75, math 0.25"
