import json
from dataclasses import replace

import pytest

from lmtrain.data.manifest import Manifest, References, Shard, SplitManifest, manifest_from_json

MANIFEST = Manifest(
    name="tiny",
    dtype="uint16",
    vocab_size=300,
    tokenizer_fingerprint="abc",
    splits={"train": SplitManifest(2, 7, 20, (Shard("train_00000.ds", 7, 2, "s", "i"),))},
    references={"validation": References(text_bytes=20, gzip_bits_per_byte=2.0, xz_bits_per_byte=1.5)},
    source="python_stdlib",
    source_fingerprint="def",
    settings={"shard_tokens": 10},
    dropped={"empty": 3},
)


def test_a_manifest_survives_json():
    assert manifest_from_json(json.loads(json.dumps(MANIFEST.to_json()))) == MANIFEST


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "uint32"},
        {"vocab_size": 301},
        {"tokenizer_fingerprint": "x"},
        {"splits": {"test": MANIFEST.splits["train"]}},
    ],
)
def test_the_fingerprint_changes_with_what_decides_the_tokens(change):
    assert replace(MANIFEST, **change).fingerprint != MANIFEST.fingerprint


@pytest.mark.parametrize("change", [{"name": "x"}, {"source": "x"}, {"source_fingerprint": "x"}, {"dropped": {}}])
def test_the_fingerprint_does_not_change_with_where_they_came_from(change):
    assert replace(MANIFEST, **change).fingerprint == MANIFEST.fingerprint
