import pytest

from lmtrain.accounting.options.parts import LossFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.run.compose import group_options
from lmtrain.run.compose.group_options import (
    choosing_precisions,
    file_values,
    one_of,
    options_of,
    words_of,
)


def test_options_are_found_by_what_they_say_of_themselves():
    assert words_of(RecomputeFacts, lambda facts: facts.keeps_least) == ["recompute=every_block"]
    assert words_of(LossFacts, lambda facts: facts.in_chunks) == ["loss=chunked"]
    assert "strategy=fsdp" in words_of(ModelSpread, lambda facts: facts.shards_most)
    assert {"strategy=auto", "strategy=ddp"} <= {*words_of(ModelSpread, lambda facts: facts.replicates)}
    assert choosing_precisions() == ["precision=auto"]


def test_a_new_option_is_found_with_the_settings_of_its_file(tmp_path, monkeypatch):
    (tmp_path / "strategy").mkdir()
    text = "_target_: lmtrain.parallel.fsdp.fsdp\nreshard_after_forward: false\n"
    (tmp_path / "strategy" / "mine.yaml").write_text(text)
    monkeypatch.setattr(group_options, "conf_folder", lambda: tmp_path)
    (mine,) = options_of(ModelSpread, lambda facts: facts.shards_most)
    assert (mine.word, mine.facts.reshard_after_forward) == ("strategy=mine", False)
    assert file_values("strategy=mine") == mine.values


@pytest.mark.parametrize(
    ("words", "said"),
    [(["loss=chunked"], "loss=chunked"), (["strategy=auto", "strategy=ddp"], "one of strategy=auto, ddp")],
)
def test_words_of_a_group_are_joined(words, said):
    assert one_of(words) == said
