import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.export_source import model_to_export
from lmtrain.training.checkpointing.weights import Kind
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
    from lmtrain.run.stored_runs.export_source import _last_validation

    points = [
        {"step": 5, "metrics": {"validation/loss": 3.0, "validation/bits_per_byte": 2.0}},
        {"step": 10, "metrics": {"validation/loss": 2.0, "validation/num_bytes": 9}},
        {"step": 20, "metrics": {"validation/loss": 1.0, "validation/ema_loss": 0.5}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    expected = {"validation/loss": 2.0, "validation/bits_per_byte": 2.0}
    assert _last_validation(tmp_path / "metrics.jsonl", 10) == expected
    assert _last_validation(tmp_path / "metrics.jsonl", 20, told=["validation/ema_loss"]) == {
        "validation/ema_loss": 0.5
    }


def test_averaged_weights_have_their_own_scores_or_none(tmp_path: Path) -> None:
    from lmtrain.run.stored_runs.export_source import _facts

    shape = SimpleNamespace(num_parameters=1, num_active_parameters=1)
    model: Any = SimpleNamespace(shape=lambda: shape, max_context_tokens=8)
    scores = {"validation/loss": 2.0, "validation/ema_loss": 3.0, "validation/ema_bits_per_byte": 4.0}

    def metrics_of(kind: Kind, metrics: dict[str, float]) -> dict[str, float]:
        source: Any = SimpleNamespace(run=tmp_path, checkpoint=SimpleNamespace(step=1, tokens=9, metrics=metrics))
        facts = _facts(source, model, "f", None, kind)
        assert facts.is_averaged == (kind == "ema")
        return facts.metrics

    assert metrics_of("raw", scores) == {"validation/loss": 2.0}
    assert metrics_of("ema", scores) == {"validation/ema_loss": 3.0, "validation/ema_bits_per_byte": 4.0}
    assert metrics_of("ema", {"validation/loss": 2.0}) == {}


def test_what_is_no_model_is_refused_under_the_name_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"SOURCE=.* is neither a run"):
        model_to_export(tmp_path)
