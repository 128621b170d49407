from hypothesis import given
from hypothesis import strategies as st

from lmtrain.training.trace_summary import exposed, length, merged

whole = st.integers(0, 40)
spans = st.lists(st.tuples(whole, whole).map(lambda ends: (min(ends), max(ends))), max_size=8)


@given(spans, spans)
def test_it_is_what_a_count_of_moments_says(waits, computes):
    def moments(intervals):
        return {moment for start, end in intervals for moment in range(start, end)}

    assert exposed(waits, computes) == len(moments(waits) - moments(computes))
    assert length(merged(waits)) == len(moments(waits))
