import statistics

import pytest

from data_pipelines.progress import StageProgress
from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.estimate import Sample, outlook, report_outlook, sample_documents, tell_sample
from lmtrain.errors import DataError, EnvironmentProblem


def documents(num_documents):
    """Documents of 1, 2, 3, ... words, and a skipped one after each tenth."""
    for number in range(1, num_documents + 1):
        yield Document(str(number), "word " * number)
        if number % 10 == 0:
            yield Skipped(f"{number}x", "too short")


def count_words(batch):
    return [len(document.text.split()) for document in batch]


def sample_of(lengths, *, is_whole=False, seconds=1.0):
    return Sample(lengths=lengths, num_skipped=0, num_text_bytes=1, seconds=seconds, is_whole=is_whole)


def test_the_sample_has_the_lengths_of_the_first_documents():
    progress = StageProgress("sample", total_documents=300)
    sample = sample_documents(documents(1000), count_words, num_documents=300, progress=progress)
    assert list(sample.lengths) == list(range(1, 301))
    assert sample.num_skipped == 29
    assert sample.num_text_bytes == 5 * sum(range(301))
    assert sample.num_tokens == sum(range(301)) + 300  # an end-of-text each
    assert not sample.is_whole
    assert progress.fraction_done() == 1


def test_a_source_that_ends_within_the_sample_is_known_as_a_whole():
    sample = sample_documents(documents(30), count_words, num_documents=31)
    assert sample.is_whole
    assert len(sample.lengths) == 30


def test_no_document_is_refused():
    with pytest.raises(DataError, match="no document to estimate from \\(1 skipped\\)"):
        sample_documents([Skipped("1", "empty")], count_words, num_documents=10)


def test_mean_median_and_p95_are_those_of_statistics():
    lengths = [3, 1, 400, 5, 9, 26, 5, 35, 8, 97]
    sample = sample_of(lengths)
    assert sample.mean_tokens == statistics.mean(lengths)
    assert sample.quantile_tokens(0.5) == statistics.median(lengths)
    cuts = statistics.quantiles(lengths, n=20, method="inclusive")
    assert sample.quantile_tokens(0.95) == pytest.approx(cuts[-1])
    assert sample_of([7]).quantile_tokens(0.95) == 7


def test_the_outlook_is_the_sample_in_proportion():
    told = outlook(sample_of([9] * 100, seconds=2.0), token_budget=9_000, train_fraction=0.9, bytes_per_id=2)
    assert told.documents == 1_000  # of 10 tokens each with end-of-text, a tenth of them held out
    assert told.seconds == pytest.approx(20)
    assert told.disk_bytes == pytest.approx((10_000 * 2 + 1_000 * 8) * 1.05)


def tell(sample, *, token_budget=9_000, free_bytes=10**9, allow_short=False):
    told = outlook(sample, token_budget=token_budget, train_fraction=0.9, bytes_per_id=2)
    report_outlook(sample, told, token_budget=token_budget, free_bytes=free_bytes, allow_short=allow_short)


def test_what_it_takes_is_told_in_two_lines(capsys):
    tell(sample_of([9] * 90 + [99] * 10))
    assert capsys.readouterr().err.splitlines() == [
        "  a document has mean 18.00, median 9, p95 99 tokens (the first 100 documents, 0 skipped)",
        "  9.0K training tokens take about 526 documents, 5.3s at the sample's rate, 25.4KB of 1.0GB free disk",
    ]


def test_a_disk_without_the_room_is_refused_with_what_fits():
    with pytest.raises(EnvironmentProblem, match=r"no room for budget\.tokens .*token_budget\)=9,000: .* 2\.6K tokens"):
        tell(sample_of([9] * 100), free_bytes=8_500)


def test_a_whole_source_that_is_far_too_short_is_refused_before_the_work():
    sample = sample_of([9] * 100, is_whole=True)
    with pytest.raises(
        DataError,
        match=r"budget\.tokens .*token_budget\)=9,000, but the source has about 1,000 tokens .*allow_short=true",
    ):
        tell(sample)
    tell(sample, allow_short=True)
    tell(sample, token_budget=1_900)  # counting decides


def test_a_whole_source_is_called_so(capsys):
    tell_sample(sample_of([4, 4], is_whole=True))
    assert "(all 2 documents, 0 skipped)" in capsys.readouterr().err
