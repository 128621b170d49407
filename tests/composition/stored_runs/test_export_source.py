import json
from pathlib import Path

import pytest

from lmtrain.composition.stored_runs.export_source import model_to_export
from lmtrain.errors import ConfigurationError
from tests.interop.hugging_face import imported, saved


def test_an_import_is_a_model_whose_data_nobody_knows(tmp_path: Path) -> None:
    saved("mixtral", tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "in")
    model = model_to_export(tmp_path / "in")
    assert (model.facts.imported_from, model.facts.data_name, model.facts.tokens) == ("hf", None, None)
    assert model.facts.num_active_parameters < model.facts.num_parameters
    assert model.tokenizer is not None
    assert model.companions == tmp_path / "in" / "original"


def test_an_import_without_tokenizer_has_none(tmp_path: Path) -> None:
    from lmtrain.interop.hf_import import import_folder, open_hugging_face

    saved("llama", tmp_path / "hf", tokenizer=False)
    import_folder(open_hugging_face(tmp_path / "hf", with_tokenizer=False), tmp_path / "in")
    assert model_to_export(tmp_path / "in").tokenizer is None
    with pytest.raises(ConfigurationError, match=r"--weights ema: .*in is an imported folder"):
        model_to_export(tmp_path / "in", weights="ema")


def test_held_out_figures_are_the_newest_up_to_the_checkpoint(tmp_path: Path) -> None:
    from lmtrain.composition.stored_runs.export_source import _last_validation

    points = [
        {"step": 5, "metrics": {"validation/loss": 3.0, "validation/bits_per_byte": 2.0}},
        {"step": 10, "metrics": {"validation/loss": 2.0, "validation/num_bytes": 9}},
        {"step": 20, "metrics": {"validation/loss": 1.0}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    expected = {"validation/loss": 2.0, "validation/bits_per_byte": 2.0}
    assert _last_validation(tmp_path / "metrics.jsonl", 10) == expected


def test_what_is_no_model_is_refused_under_the_name_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"SOURCE=.* is neither a run"):
        model_to_export(tmp_path)
