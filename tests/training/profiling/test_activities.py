from hypothesis import given
from hypothesis import strategies as st

from lmtrain.training.trace_summary import exposed, length, merged


def test_what_computing_hides_does_not_count():
    assert exposed([(0, 10)], [(0, 4), (6, 7)]) == 5
    assert exposed([(0, 10), (5, 12)], []) == 12
    assert exposed([(2, 3)], [(0, 10)]) == 0


whole = st.integers(0, 40)
spans = st.lists(st.tuples(whole, whole).map(lambda ends: (min(ends), max(ends))), max_size=8)


@given(spans, spans)
def test_it_is_what_a_count_of_moments_says(waits, computes):
    def moments(intervals):
        return {moment for start, end in intervals for moment in range(start, end)}

    assert exposed(waits, computes) == len(moments(waits) - moments(computes))
    assert length(merged(waits)) == len(moments(waits))
