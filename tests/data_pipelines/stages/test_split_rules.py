import pytest

from data_pipelines.sources.base import Document
from data_pipelines.sources.files import Files
from data_pipelines.sources.hf_dataset import HuggingFaceDataset
from data_pipelines.stages.split import HeldOut
from data_pipelines.stages.split_rules import held_out_of, split_by_rule
from lmtrain.errors import ConfigurationError
from tests.data_pipelines.poems import Poems

FRACTIONS = (0.05, 0.05)
NAMED = Files(paths=["a"], validation_paths=["b"])


def test_a_rule_keeps_the_fractions_and_a_source_of_its_own_validation_text_has_none():
    assert held_out_of(Poems(), "hash", fractions=FRACTIONS) == HeldOut(0.05, 0.05)
    assert held_out_of(Poems(), "tail", fractions=FRACTIONS).splits == ("train", "validation", "test")
    named = held_out_of(NAMED, "hash", fractions=FRACTIONS, budget=5)
    assert named.splits == ("train", "validation")
    assert named.fractions["train"] == 1


@pytest.mark.parametrize(
    ("source", "rule", "budget", "message"),
    [
        (Poems(), "tial", None, r"data\.folder\.split=tial is not hash or tail\. Did you mean 'tail'"),
        (Poems(), "tail", 5, r"a budget of 5 tokens stops before it .*; nearest valid: data\.folder\.split=hash"),
        (NAMED, "tail", None, r"no effect beside source\.validation_paths"),
        (HuggingFaceDataset(name="a/b"), "tail", None, r"set source\.streaming=false, or nearest valid: .*=hash"),
    ],
)
def test_what_a_rule_cannot_do_is_refused_with_the_nearest_word(source, rule, budget, message):
    with pytest.raises(ConfigurationError, match=message):
        held_out_of(source, rule, fractions=FRACTIONS, budget=budget)
    held_out_of(HuggingFaceDataset(name="a/b", streaming=False), "tail", fractions=FRACTIONS)


def test_a_document_in_both_texts_is_told(capsys):
    documents = [Document("a", "held", split="validation"), Document("b", "own"), Document("c", "held")]

    def read():
        return documents

    pairs = list(split_by_rule(read, read, held_out=HeldOut(0, 0, "named")))
    assert [split for split, _ in pairs] == ["validation", "train", "train"]
    assert "1 training document equal to one of source.validation_paths: " in capsys.readouterr().err
