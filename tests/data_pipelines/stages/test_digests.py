import random

from data_pipelines.sources.base import Document
from data_pipelines.stages.digests import DIGEST_BYTES, Digests, digest_of


def test_it_is_a_set_however_often_runs_merge():
    rng = random.Random(0)
    digests, reference = Digests(num_recent=8), set()
    for _ in range(3000):
        digest = rng.randrange(900).to_bytes(DIGEST_BYTES, "little")
        assert digests.add(digest) == (digest not in reference)
        reference.add(digest)


def test_digests_that_share_a_half_are_different():
    digests = Digests(num_recent=2)
    both = [first + second for first in (b"a" * 8, b"b" * 8) for second in (b"a" * 8, b"b" * 8)]
    assert [digests.add(digest) for digest in both + both] == [True] * 4 + [False] * 4


def test_it_holds_sixteen_bytes_a_digest_in_few_runs():
    digests = Digests(num_recent=64)
    for number in range(64 * 64):
        digests.add(random.Random(number).randbytes(DIGEST_BYTES))
    assert digests.num_bytes == 16 * 64 * 64
    assert len(digests._runs) <= 2


def test_the_digest_is_of_the_content_alone():
    assert digest_of(Document("a", "x")) == digest_of(Document("b", "x"))
    assert digest_of(Document("a", "x")) != digest_of(Document("a", "y"))
    said = ({"role": "user", "content": "x"},)
    assert digest_of(Document("a", "", said)) == digest_of(Document("b", "", ({"content": "x", "role": "user"},)))
    assert digest_of(Document("a", "", said)) != digest_of(Document("a", "", ({"role": "system", "content": "x"},)))
    assert digest_of(Document("a", "", said)) != digest_of(Document("a", ""))
