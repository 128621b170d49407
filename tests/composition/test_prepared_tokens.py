import json

from lmtrain.composition.compose import compose_config
from lmtrain.composition.prepared_tokens import prepared_train_tokens


def test_a_folder_that_is_named_tells_its_tokens(tmp_path):
    (tmp_path / "dataset.json").write_text(json.dumps({"splits": {"train": {"num_tokens": 1234}}}))
    config = compose_config(["data=shards", f"data.folder.path={tmp_path}"])
    assert prepared_train_tokens(config, allowed=[]) == 1234


def test_nothing_is_prepared_to_know():
    assert prepared_train_tokens(compose_config([]), allowed=[]) is None
