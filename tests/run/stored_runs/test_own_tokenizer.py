from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmtrain.data.manifest import Manifest
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.stored_runs.own_tokenizer import keeping, preparation_by, with_tokenizer
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


@pytest.mark.parametrize(
    ("source", "settings", "words"),
    [
        ("python_stdlib", {"held_out": {"validation_fraction": 0.05}}, "source=python_stdlib"),
        (
            "made_conversations",
            {"held_out": {"test_fraction": 0.1, "rule": "tail"}, "token_budget": 1000},
            "source=made_conversations data.folder.test_fraction=0.1 data.folder.split=tail budget.tokens=1000",
        ),
        ("files", {}, "source=files source.paths=..."),
        ("HuggingFaceTB_smol", {}, "source=..."),
    ],
)
def test_data_is_prepared_again_by_the_words_of_its_manifest(source: str, settings: dict[str, Any], words: str) -> None:
    manifest = Manifest(
        name=source, dtype="uint16", vocab_size=300, tokenizer_fingerprint="f", splits={}, source=source,
        settings=settings,
    )  # fmt: skip
    said, _, more = preparation_by(Path.cwd() / "runs/notes/tokenizer", manifest).partition(" (with the words of ")
    assert said == f"lmtrain prepare {words} tokenizer=folder tokenizer.path=runs/notes/tokenizer"
    assert bool(more) is ("..." in words)


def test_a_checkpoint_that_does_not_name_its_tokenizer_has_its_runs(tmp_path: Path) -> None:
    old = CheckpointFacts(path=tmp_path / "checkpoints/step_00000001", step=1, tokens=1, identity={}, metrics={})
    assert with_tokenizer(old, otherwise="here").identity == {"tokenizer": "here"}
    write_json(tmp_path / "dataset.json", {"tokenizer_fingerprint": "there"})
    assert with_tokenizer(old, otherwise="here").identity == {"tokenizer": "there"}
