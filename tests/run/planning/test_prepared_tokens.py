import json

import pytest

from lmtrain.data.packing import BestFit, OneDocument
from lmtrain.errors import DataError
from lmtrain.run.planning.prepared_tokens import (
    prepared_epoch_tokens,
    prepared_train_tokens,
    remember_folder,
    require_split,
)
from tests.configs import config_of
from tests.data.documents import make_dataset


def prepared(folder, num_tokens):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps({"splits": {"train": {"num_tokens": num_tokens}}}))
    return folder


def test_a_source_without_the_text_of_validation_is_refused_with_its_name_and_the_words(tmp_path):
    words = ["data=mixture", "++data.sources.web.weight=1", "++data.sources.math.weight=1"]
    for name, splits in (("web", {"train": {}, "validation": {}, "test": {}}), ("math", {"train": {}, "test": {}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset.json").write_text(json.dumps({"splits": splits}))
        words.append(f"++data.sources.{name}.path={tmp_path / name}")
    told = rf"^data\.sources\.math: data set {tmp_path}/math has no split 'validation' to measure, only train, test; "
    with pytest.raises(DataError, match=told + r".*validation_fraction=0\.05.*callbacks\.validation=null\.$"):
        require_split(config_of(*words))
    require_split(config_of(*words, "callbacks.validation.split=test"))
    require_split(config_of(*words, "callbacks.validation=null"))
    require_split(config_of("data=mixture", "++data.sources.web.path=nowhere"))
    alone = config_of("data=shards", f"data.folder.path={tmp_path / 'math'}", "callbacks.validation.split=tests")
    with pytest.raises(DataError, match=r"^data set .*math has no split 'tests'.* Did you mean 'test'\?"):
        require_split(alone)


def test_what_a_run_prepared_is_known_to_later_plans_of_the_same_data(tmp_path):
    words = ["data=synthetic", f"run.cache={tmp_path / 'cache'}", "data.folder.num_tokens=20K"]
    config = config_of(*words)
    folder = config.data.node("folder")
    assert folder is not None
    checked = config.changed(
        data=config.data.changed(folder=folder.checked().values)
    )  # amounts are numbers, as in a run
    remember_folder(checked, prepared(tmp_path / "synthetic-x", 20_480))
    assert prepared_train_tokens(config_of(*words, "optimizer=adamw", "batch.context_tokens=64")) == 20_480
    assert prepared_train_tokens(config_of(*words, "data.folder.seed=1")) is None


def test_an_epoch_is_every_row_once_with_its_padding(tmp_path):
    made = make_dataset(tmp_path, [40, 20, 30, 90, 40])  # 5 rows of a document, or 4 of 64 where they are fitted
    words = ["data=shards", f"data.folder.path={made.folder}", "batch.context_tokens=64"]
    of = {name: config_of(*words, f"packing={name}") for name in ("contiguous", "best_fit", "document")}
    assert prepared_epoch_tokens(of["contiguous"]) == 220
    assert prepared_epoch_tokens(of["best_fit"]) == 220, "not known before its index is built"
    assert prepared_epoch_tokens(of["document"]) == OneDocument().epoch_tokens(made, context_tokens=64) == 5 * 64
    assert BestFit().epoch_tokens(made, context_tokens=64) == 4 * 64 == prepared_epoch_tokens(of["best_fit"])
