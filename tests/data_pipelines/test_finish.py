import dataclasses

import pytest

from data_pipelines.finish import references_of, write_verified
from lmtrain.data.shards import open_dataset
from lmtrain.errors import DataError
from lmtrain.tokenizers.loading import load_tokenizer
from tests.data_pipelines.poems import make


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("root") / "data")


def test_only_what_is_held_out_is_compressed(folder):
    manifest = open_dataset(folder).manifest
    references = references_of(folder, manifest.splits, dtype="uint16", tokenizer=load_tokenizer(folder / "tokenizer"))
    assert references == manifest.references
    assert set(references) == {"validation", "test"}


def test_a_manifest_that_is_not_of_the_shards_is_refused(folder):
    manifest = open_dataset(folder).manifest
    train = dataclasses.replace(manifest.splits["train"], text_bytes=1)
    wrong = dataclasses.replace(manifest, splits={**manifest.splits, "train": train})
    with pytest.raises(DataError, match=r"do not verify: the train split's ids stand for .* \(1 problems\)"):
        write_verified(folder, wrong)
    write_verified(folder, manifest)
