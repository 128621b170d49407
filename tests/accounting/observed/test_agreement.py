import pytest

from lmtrain.accounting.observed.agreement import until_two_agree


@pytest.mark.parametrize(
    ("rates", "num_tries", "words"),
    [
        ((100.0, 97.0), 2, "2 tries, the last two within 3.0%"),
        ((50.0, 100.0, 96.0), 3, "3 tries, the last two within 4.0%"),
        ((9.0, 5.0, 9.0, 5.0, 10.0), 5, "the machine is busy: 5 tries, the last two differ by 50.0%"),
    ],
)
def test_measuring_ends_where_two_agree_or_says_that_they_do_not(rates, num_tries, words):
    given = iter([*rates, *[1.0] * 9])
    tries = until_two_agree(lambda: next(given), lambda rate: {"it": rate})
    assert tries.results == rates
    assert (len(tries.results), tries.words, tries.agree) == (num_tries, words, "busy" not in words)
