from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from lmtrain.run.compose.cut_values import in_a_shell, in_quotes, joined_words


def test_a_path_with_a_space_that_is_here_stays_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my notes", "a", "b"):
        (tmp_path / name).mkdir()
    assert joined_words("source.paths=my", ["notes"], []) == ["source.paths=my notes"]
    assert joined_words("source.paths=a", ["b"], []) == ["source=files", "source.paths=[a,b]"]
    assert joined_words("source.paths=/no/a", ["/no/b"], ["source=files"]) == ["source.paths=[/no/a,/no/b]"]
    assert joined_words("source.paths=[no,", ["such]"], []) == ["source=files", "source.paths=[no,such]"]


def test_answers_are_quoted_for_a_shell() -> None:
    assert in_a_shell(["source=files", "source.paths=[a,b]"]) == "source=files 'source.paths=[a,b]'"
    assert in_a_shell(["run.root=my runs"]) == "'run.root=my runs'"


def test_signs_that_hydra_cannot_read_stand_in_quotes_in_a_list_item_by_item() -> None:
    assert in_quotes("[~/a b, ~/c]") == '["~/a b","~/c"]'
    assert [in_quotes(value) for value in ("~/a", "[[~/a]")] == ['"~/a"', '"[[~/a]"']
    assert in_quotes('["~/a,[", ~/b]') == '["~/a,[","~/b"]'
    assert in_quotes('["~/a, ~/b]') == r'"[\"~/a, ~/b]"'


def test_a_mapping_has_its_lists_and_its_own_values_in_quotes_as_hydra_reads_them() -> None:
    words = "words: [task=dpo, source.paths=[a.jsonl,b.jsonl]]"
    read = in_quotes(f"{{verb: train, of: talker, {words}}}")
    assert read == '{verb: train, of: talker, words: ["task=dpo","source.paths=[a.jsonl,b.jsonl]"]}'
    (override,) = OverridesParser.create().parse_overrides([f"+a={read}"])
    assert override.value() == {
        "verb": "train",
        "of": "talker",
        "words": ["task=dpo", "source.paths=[a.jsonl,b.jsonl]"],
    }
