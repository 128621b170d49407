"""A made-up corpus in which duplicates, near duplicates, junk and broken characters are planted."""

import random
from collections.abc import Iterator
from itertools import chain

from data_pipelines.sources.base import Document, Skipped, Source

STOP = ("the", "of", "and", "to", "that", "with")
NUM_GOOD = 40
NUM_PIECES = 7


def words(rng, count):
    """Return made-up words, every fourth a stop word."""
    letters = "bcdfghklmnprstvw"
    return [
        rng.choice(STOP)
        if place % 4 == 0
        else "".join(rng.choice(letters) + rng.choice("aeiou") for _ in range(rng.randint(1, 4)))
        for place in range(count)
    ]


def prose(seed, num_sentences=20):
    """Return sentences of made-up words that look like a page."""
    rng = random.Random(seed)
    sentences = [" ".join(words(rng, 12)).capitalize() + "." for _ in range(num_sentences)]
    return "\n".join(" ".join(sentences[start : start + 4]) for start in range(0, num_sentences, 4))


def with_words_changed(text, count, seed=0):
    """Return a text in which so many words, spread evenly, are other ones."""
    rng = random.Random(seed)
    parts = text.split(" ")
    for number in range(count):
        parts[number * len(parts) // count] = "".join(rng.choice("aeiou") + rng.choice("xyz") for _ in range(4))
    return " ".join(parts)


GOOD = [Document(f"good_{number}", prose(number)) for number in range(NUM_GOOD)]
SAME = [Document(f"same_{number}", GOOD[number].text.replace("\n", "\r\n")) for number in range(5)]
NEAR = [Document(f"near_{number}", with_words_changed(GOOD[number].text, 2)) for number in range(10, 16)]
BROKEN = [Document(f"broken_{number}", f"{prose(1000 + number)}\nThe caf\xe9 was na\xefve.\0") for number in range(2)]
SAME_ONCE_REPAIRED = [Document("repaired", f"{prose(1000)}\nThe caf\xe9 was na\xefve.")]
EMPTY = [Document("empty_0", ""), Document("empty_1", " \n\t"), Document("empty_2", "\0\0\ufeff")]
JUNK = {
    "gopher: too few words": "Just five words of text.",
    "gopher: short words": "a b " * 60,
    "gopher: bullet lines": "- the thing that was of use to them\n" * 30,
    "gopher: duplicate lines": "\n".join([prose(7, 4), *["Click here to read the rest of that."] * 9]),
    "c4: lorem ipsum": prose(8) + " Lorem ipsum dolor sit amet.",
    "c4: curly bracket": prose(9) + " if (a) { return; }",
}
ALL_JUNK = [Document(f"junk {reason}", text) for reason, text in JUNK.items()]
UNREADABLE = [Skipped("file_9", "not UTF-8 text")]


class Planted(Source):
    """All of it, in pieces."""

    name = "planted"

    def fingerprint(self):
        return "planted 1"

    def documents(self) -> Iterator[Document | Skipped]:
        return chain.from_iterable(map(self.piece, range(NUM_PIECES)))

    def num_pieces(self):
        return NUM_PIECES

    def piece(self, index) -> Iterator[Document | Skipped]:
        mixed = [*GOOD, *SAME, *NEAR, *BROKEN, *SAME_ONCE_REPAIRED, *EMPTY, *ALL_JUNK, *UNREADABLE]
        return iter(mixed[index * len(mixed) // NUM_PIECES : (index + 1) * len(mixed) // NUM_PIECES])


def kept(items):
    """Return the ids of the documents among items."""
    return [item.id for item in items if isinstance(item, Document)]


def reasons(items):
    """Return how many were dropped for each reason."""
    counts = {}
    for item in items:
        if isinstance(item, Skipped):
            counts[item.reason] = counts.get(item.reason, 0) + 1
    return counts
