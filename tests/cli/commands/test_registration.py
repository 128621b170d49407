import argparse
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.commands import registration as verb
from lmtrain.cli.commands.registration import add_registration, registration
from lmtrain.errors import ConfigurationError
from tests.run.stored_runs.test_find_run import run_folder


def arguments(source: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_registration(parser)
    return parser.parse_args(words, argparse.Namespace(source=source))


def test_a_version_is_of_one_checkpoint_also_of_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(verb, "ModelRegistry", lambda *words, **named: asked.append((words, named)))
    run = run_folder(tmp_path / "a", 5, 20)
    wanted = registration(arguments(run, "--register", "m", "--tracking-uri", "http://team:5000"))
    assert wanted is not None
    assert (wanted.checkpoint, wanted.step) == (run / "checkpoints/step_00000020", 20)
    assert wanted.facts == {"tokens": 200, "bits_per_byte": None, "data_fingerprint": None}
    assert asked == [((run, "m"), {"tracking_uri": "http://team:5000"})]
    assert registration(arguments(run)) is None


def test_an_import_and_an_address_without_effect_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"--tracking-uri http://a has no effect without --register NAME"):
        registration(arguments(tmp_path, "--tracking-uri", "http://a"))
    monkeypatch.setattr(verb, "find_source", lambda path, key: path)
    with pytest.raises(ConfigurationError, match=r"--register m: .* is an imported folder"):
        registration(arguments(tmp_path, "--register", "m"))
