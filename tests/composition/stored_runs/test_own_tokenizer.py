from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.composition.stored_runs.job import Job
from lmtrain.composition.stored_runs.own_tokenizer import keeping, with_tokenizer
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tracking.atomic_files import write_json
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts


def test_data_made_elsewhere_has_to_be_prepared_anew(
    tiny_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/dev")  # paths below the working folder are named from there
    ByteLevelTokenizer(vocab_size=300).save(tmp_path / "tokenizer")
    words = f"tokenizer=folder tokenizer.path={tmp_path}/tokenizer tokenizer.vocab_size=300"
    told = keeping(tmp_path, ["tokenizer=byte_level"], tiny_job().config.data)
    assert told == f"text prepared with its own tokenizer ({words})"


def test_a_checkpoint_that_does_not_name_its_tokenizer_has_its_runs(tmp_path: Path) -> None:
    old = CheckpointFacts(path=tmp_path / "checkpoints/step_00000001", step=1, tokens=1, identity={}, metrics={})
    assert with_tokenizer(old, otherwise="here").identity == {"tokenizer": "here"}
    write_json(tmp_path / "dataset.json", {"tokenizer_fingerprint": "there"})
    assert with_tokenizer(old, otherwise="here").identity == {"tokenizer": "there"}
