import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.quality import C4Quality, FineWebQuality, GopherQuality
from tests.data_pipelines.corpus import GOOD, prose

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


def test_gopher_without_stop_words_takes_other_languages():
    assert reason(GopherQuality(min_stop_words=0), "der Hund und die Katze gehen heute spazieren " * 9) is None


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


def test_c4_rules_can_be_left_out():
    assert reason(C4Quality(curly_brackets=False, lorem_ipsum=False, min_sentences=0), "{ lorem ipsum }") is None


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


def test_the_fingerprint_tells_every_setting():
    stages = [GopherQuality(), GopherQuality(min_words=1), C4Quality(), C4Quality(min_sentences=1), FineWebQuality()]
    parts = {str(stage.fingerprint_parts()) for stage in stages}
    assert len(parts) == len(stages)


def test_prose_is_judged_alike_by_the_rules_of_datatrove():
    filters = pytest.importorskip("datatrove.pipeline.filters")
    data = pytest.importorskip("datatrove.data")
    pytest.importorskip("spacy")
    theirs = filters.GopherQualityFilter()
    junk = ["Just five words of text.", "a b " * 60, "- the thing of use to them\n" * 30, "1 2 3 4 " * 60]
    for text in [*(prose(seed) for seed in range(10)), *junk]:
        judged = theirs.filter(data.Document(text=text, id=""))
        assert (judged is True) == (reason(GopherQuality(), text) is None)
