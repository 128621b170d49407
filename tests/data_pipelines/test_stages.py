"""Cleaning, quality rules and deduplication."""

import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair, uniform
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.pieces import cut_into_pieces
from data_pipelines.stages.quality import C4Quality, FineWebQuality, GopherQuality, GopherRepetition
from data_pipelines.stages.stage import in_turn
from tests.data_pipelines.corpus import GOOD, prose


def test_documents_go_through_stages_in_turn_and_drops_stay_in_their_places():
    documents = [Document("a", "x\r\n"), Skipped("b", "why"), Document("c", "\0"), Document("d", "x\n")]
    items = list(in_turn([UnicodeRepair(), LengthFilter(), ExactDeduplication()], documents))
    assert items == [
        Document("a", "x\n"),
        Skipped("b", "why"),
        Skipped("c", "empty"),
        Skipped("d", "exact duplicate"),
    ]


ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))


def repair(text):
    return UnicodeRepair().look_at(Document("a", text)).text


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\x85", "\u2028", "\u2029"])
def test_every_line_end_becomes_a_newline(line_end):
    assert uniform(f"a{line_end}b{line_end}") == "a\nb\n"


@pytest.mark.parametrize("character", ["\0", "\x07", "\x1b", "\x7f", "\x80", "\x9f", "\ufeff"])
def test_what_is_no_text_is_removed(character):
    assert repair(f"{character}a{character}b") == "ab"


@given(ANY_TEXT)
def test_what_comes_out_is_utf_8_and_stays_as_it_is(text):
    once = repair(text)
    assert repair(once) == once
    assert once.encode().decode() == once


def test_a_conversation_is_repaired_turn_by_turn_and_its_roles_stay():
    messages = ({"role": "user", "content": "a\r\nb\0"}, {"role": "assistant", "content": "it\u2019s\x1b"})
    repaired = UnicodeRepair().look_at(Document("a", "", messages))
    assert repaired == Document(
        "a", "", ({"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "it\u2019s"})
    )


WORDS = "the weather of today and that of tomorrow "
CHAT = Document("chat", "", ({"role": "user", "content": "hi"},))


def reason(stage, text):
    item = stage.look_at(Document("a", text))
    return item.reason if isinstance(item, Skipped) else None


@pytest.mark.parametrize("stage", [GopherQuality(), C4Quality(), FineWebQuality()])
def test_prose_and_conversations_pass(stage):
    assert list(stage([*GOOD, CHAT])) == [*GOOD, CHAT]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WORDS * 6, "gopher: too few words"),
        (WORDS * 7, None),
        (WORDS * 12501, "gopher: too many words"),
        ("to be of " * 30, "gopher: short words"),
        ("the extraordinarily incomprehensible " * 30, "gopher: long words"),
        (WORDS * 7 + "# " * 7, "gopher: symbols"),
        (WORDS * 7 + "# " * 6, None),
        (WORDS * 10 + "... " * 10, "gopher: symbols"),
        ("- " + f"{WORDS}\n- " * 9 + WORDS, "gopher: bullet lines"),
        (f"{WORDS}\n" + f"- {WORDS}\n" * 9, None),
        (f"{WORDS}\n" * 5 + f"{WORDS}\u2026\n" * 3, "gopher: ellipsis lines"),
        (f"{WORDS}\n" * 7 + f"{WORDS}...\n" * 3, None),
        (WORDS * 7 + "1234 " * 15, "gopher: few alphabetic words"),
        (WORDS * 7 + "1234 " * 14, None),
        ("der Hund und die Katze gehen heute zusammen spazieren " * 9, "gopher: few stop words"),
        ("the dog goes for a walk today because it rains " * 9, "gopher: few stop words"),
        ('The dog goes "of" a walk today because it rains ' * 9, None),
    ],
)
def test_gopher_says_which_rule_is_broken(text, expected):
    assert reason(GopherQuality(), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two. Three.", None),
        ("One. Two.", "c4: too few sentences"),
        ("One. Two. Lorem Ipsum. Three.", "c4: lorem ipsum"),
        ("One. Two. {Three}.", "c4: curly bracket"),
    ],
)
def test_c4_says_which_rule_is_broken(text, expected):
    assert reason(C4Quality(), text) == expected


LONG = [f"this is line number {number} with enough in it" for number in range(100)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([f"{line}." for line in LONG], None),
        ([f"{line}." for line in LONG[:12]] + LONG[12:], "fineweb: few punctuated lines"),
        ([f"{line}." for line in LONG[:13]] + LONG[13:], None),
        ([f"{line}." for line in LONG[:33]] + [f"menu {number}." for number in range(67)], "fineweb: short lines"),
        ([f"{line}." for line in LONG[:34]] + [f"menu {number}." for number in range(66)], None),
        ([f"{line}." for line in LONG] + [f"{LONG[0]}."] * 12, "fineweb: duplicate lines"),
        ([f"{line}." for line in LONG] + [f"{LONG[0]}."] * 11, None),
        (["", " "], "empty"),
    ],
)
def test_fineweb_says_which_rule_is_broken(lines, expected):
    assert reason(FineWebQuality(), "\n".join(lines)) == expected


def test_prose_is_judged_alike_by_the_rules_of_datatrove():
    filters = pytest.importorskip("datatrove.pipeline.filters")
    data = pytest.importorskip("datatrove.data")
    pytest.importorskip("spacy")
    theirs = filters.GopherQualityFilter()
    junk = ["Just five words of text.", "a b " * 60, "- the thing of use to them\n" * 30, "1 2 3 4 " * 60]
    for text in [*(prose(seed) for seed in range(10)), *junk]:
        judged = theirs.filter(data.Document(text=text, id=""))
        assert (judged is True) == (reason(GopherQuality(), text) is None)


def different_lines(count):
    return prose(5, 4 * count).split("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n".join([*different_lines(7), *["read more"] * 5]), "gopher: duplicate lines"),
        ("\n".join([*different_lines(8), *["read more"] * 4]), None),
        ("\n\n".join([*different_lines(7), *["read more"] * 5]), "gopher: duplicate paragraphs"),
        ("\n".join(different_lines(12) + different_lines(12)[:1]), None),
        ("\n".join(different_lines(3) + different_lines(3)[:1]), "gopher: characters in duplicate lines"),
        ("\n\n".join(different_lines(3) + different_lines(3)[:1]), "gopher: characters in duplicate paragraphs"),
        (" ".join(["good night", *different_lines(1), *["good night"] * 9]), "gopher: top 2-word phrase"),
        ("", None),
        ("two words", None),
    ],
)
def test_it_says_which_rule_is_broken(text, expected):
    assert reason(GopherRepetition(), text) == expected


@pytest.mark.parametrize(
    ("num_words", "most", "expected"),
    [(5, 0.33, "gopher: repeated 5-word phrases"), (5, 0.34, None), (10, 0.33, "gopher: repeated 10-word phrases")],
)
def test_a_third_that_has_stood_there_before_is_a_third(num_words, most, expected):
    phrase = [f"w{number:02d}" for number in range(10)]
    others = [f"o{number:02d}" for number in range(10)]
    text = " ".join([*phrase, *others, *phrase])
    stage = GopherRepetition(max_top_phrase_fractions={}, max_repeated_phrase_fractions={num_words: most})
    assert reason(stage, text) == expected


def corpus(count=400, different=150):
    rng = random.Random(0)
    texts = [f"text {rng.randrange(different)}" for _ in range(count)]
    documents: list[Document | Skipped] = [Document(f"{number}", text) for number, text in enumerate(texts)]
    documents[3] = Skipped("3", "why")
    return documents


def reference(documents):
    seen = set()
    for item in documents:
        if isinstance(item, Document) and item.text in seen:
            yield Skipped(item.id, "exact duplicate")
        else:
            seen.add(getattr(item, "text", None))
            yield item


@pytest.mark.parametrize(("num_tasks", "piece_characters"), [(1, 10**9), (1, 900), (5, 2000), (16, 1)])
def test_jobs_over_pieces_decide_the_same_as_one_stream(tmp_path, num_tasks, piece_characters):
    stage = ExactDeduplication(num_tasks=num_tasks)
    pieces = cut_into_pieces(tmp_path / "pieces", corpus(), piece_characters=piece_characters)
    for job in stage.jobs(pieces, tmp_path / "exact"):
        for task in reversed(range(job.num_tasks)):
            job.run(task)
    rest = pieces.without(partial(stage.removed, tmp_path / "exact"))
    items = [item for piece in range(pieces.count) for item in rest.items(piece)]
    assert items == list(reference(corpus()))
