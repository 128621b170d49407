"""The table that ships: what it says is what would be measured now."""

import json
from collections import Counter
from itertools import product

import pytest

from benchmarks.questions.known_models import all_models, composed, write
from lmtrain.accounting.model.model_facts import known_facts
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning import measured_model
from lmtrain.run.planning.known_models import TABLE, key_of, model_facts
from lmtrain.run.planning.measured_model import measure_model
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import read_config

CONTENT = json.loads(TABLE.read_text())
H100 = ("cluster=h100_8x", "precision=bf16_mixed")
USUAL = [
    (),
    ("precision=fp32",),
    *((*H100, f"strategy={s}", f"recompute={r}") for s, r in product(("ddp", "fsdp"), ("none", "every_block"))),
]


def test_a_fresh_clone_knows_the_table_s_models_in_their_usual_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(measured_model, "measure_model", None)
    usual = [compose_config([*words, f"run.cache={tmp_path}"]) for words in USUAL]
    listed = {name.partition("@")[0] for name in CONTENT["models"]}
    assert listed <= {*all_models()}
    rows = Counter(row["model"].partition("@")[0] for rows in CONTENT["settings"].values() for row in rows)
    for model in sorted(listed):
        node = compose_config([f"model={model}"])["model"]
        on_a_gpu_alone = rows[model] == len(USUAL[2:])
        for values in usual[2:] if on_a_gpu_alone else usual:
            config = read_config({**values, "model": node})
            facts = model_facts(config, planned_setting(config))
            assert facts.shape.num_parameters > 0, model


@pytest.mark.parametrize("words", [pytest.param(USUAL[1], marks=pytest.mark.benchmarks), USUAL[4]])
def test_a_row_is_what_would_be_measured_now(words):
    config, setting = composed("gpt2_124m", words, 256)
    assert known_facts(CONTENT, key_of(config, setting), 256) == measure_model(config, setting)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama_3_8b", pytest.param("mixtral_tiny", marks=pytest.mark.benchmarks)])
def test_a_row_tells_of_contexts_that_were_not_measured(model):
    context_tokens = 1024 if model == "mixtral_tiny" else 3000
    config, setting = composed(model, USUAL[2], context_tokens)
    planned = known_facts(CONTENT, key_of(config, setting), context_tokens)
    found = measure_model(config, setting)
    assert planned is not None
    for sequences in (1, 2, 64):
        assert planned.activations.of(sequences) == found.activations.of(sequences)
        of_table, now = (
            facts.activations.of(sequences) + facts.block_workspace_bytes(sequences) for facts in (planned, found)
        )
        assert of_table == pytest.approx(now, rel=0.01)  # a workspace of few tokens grows otherwise than one of many


def test_the_file_is_small_and_written_by_the_benchmark(tmp_path):
    assert TABLE.stat().st_size < 300_000
    write(CONTENT, tmp_path / "table.json")
    assert (tmp_path / "table.json").read_text() == TABLE.read_text()
