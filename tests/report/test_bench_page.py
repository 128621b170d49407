from lmtrain.report.bench_page import page
from lmtrain.report.show import plain_text
from tests.accounting.test_step_parts import BENCH


def test_the_page_tells_speed_parts_bottleneck_and_what_would_help():
    text = plain_text(page(BENCH, title="llama_tiny"))
    for words in ("110.0 ms, mean of 40", "10,000", "20.0% palm, 10.0% causal of a table", "60.00 ms  54.5%"):
        assert words in text
    assert "Bottleneck: compute\n" in text
    assert text.index("What would help") < text.index("up to 9% faster")
