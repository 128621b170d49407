import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.clean import Cleaning, uniform


def test_every_drop_is_counted_by_its_reason():
    cleaning = Cleaning(min_document_characters=3)
    documents = [
        Document("a", "hello"),
        Document("b", ""),
        Document("c", " \n\t"),
        Document("d", "ab   "),
        Document("e", "hello"),
        Skipped("f", "not UTF-8 text"),
        Document("g", "world"),
    ]
    assert [document.id for document in cleaning(documents)] == ["a", "g"]
    assert cleaning.dropped == {"empty": 2, "too short": 1, "exact duplicate": 1, "not UTF-8 text": 1}


def test_texts_that_differ_only_in_line_ends_are_duplicates():
    cleaning = Cleaning(min_document_characters=1)
    assert list(cleaning([Document("a", "x\r\ny"), Document("b", "x\ny")])) == [Document("a", "x\ny")]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\x85", "\u2028", "\u2029"])
def test_every_line_end_becomes_a_newline(line_end):
    assert uniform(f"a{line_end}b{line_end}") == "a\nb\n"


def test_lone_surrogates_become_replacements_and_pairs_characters():
    assert uniform("a\ud800b") == "a\ufffdb"
    assert uniform("\ud83d\ude00") == "😀"


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_what_comes_out_is_utf_8_and_stays_as_it_is(text):
    once = uniform(text)
    assert uniform(once) == once
    assert once.encode().decode() == once


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029")))
def test_clean_text_is_not_touched(text):
    assert uniform(text) == text
