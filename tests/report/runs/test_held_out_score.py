import json

import pytest

from lmtrain.report.runs.held_out_score import held_out_score
from lmtrain.report.runs.held_out_text import held_out_text
from lmtrain.tracking.run_log import Point
from tests.report.runs_on_disk import write_data

WHOLE, READ = "the assistant's words, 300 of 1,000 bytes", "validation/read_tokens"


def score(folder, *read, num_bytes=300, masked=True, data=("one", "one")):
    """Return the score of a run that read so many of its split's 200 tokens, before and after training.

    `data` is of an attempt each, the first at step 0 and the second at step 1; the last is that of its dataset.json.
    """
    shards = [{"file": "a", **({"mask_sha256": "0"} if masked else {})}]
    write_data(folder, *data)
    dataset = {
        "name": "a book",
        "fingerprint": data[-1],
        "splits": {"validation": {"text_bytes": 1000, "num_tokens": 200, "shards": shards}},
        "references": {"validation": {"gzip_bits_per_byte": 1.9}},
    }
    (folder / "dataset.json").write_text(json.dumps(dataset))
    points = [
        Point(
            float(step), step, step, {"validation/bits_per_byte": 2.0 - step, "validation/num_bytes": num_bytes + step}
        )
        for step in (0, 1)
    ]
    for point, tokens in zip(points, read, strict=False):
        point.metrics[READ] = tokens
    found = held_out_score(points, {}, folder, split="validation", last_step=1)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ((200, 200), ", all conversations"),
        ((40, 100), ", the first 50.0% of the conversations"),
        ((), ""),  # of a run that did not note it
    ],
)
def test_a_score_of_conversations_is_of_the_assistants_words_beside_no_compressor(tmp_path, read, words):
    found = score(tmp_path, *read, num_bytes=299)
    assert found.part_words == WHOLE + words
    assert "gzip" not in str(found.worst_first()), "it read the users' turns too"
    before = {(200, 200): "all of it", (40, 100): "the first 20.0%"}.get(read, "299 bytes")
    assert found.before_words == f"before training, of {before}"


def test_a_part_of_a_text_is_told_by_its_bytes_and_the_whole_of_a_short_one_by_its_tokens(tmp_path):
    assert score(tmp_path, 20, 20, num_bytes=119, masked=False).part_words == "the first 12.0%, 120 bytes"
    assert score(tmp_path, 200, 200, num_bytes=989, masked=False).part_words == "all but the first token, 990 bytes"
    assert score(tmp_path, num_bytes=499, masked=False).part_words == "the first 50.0%, 500 bytes"


@pytest.mark.parametrize(
    ("data", "before"),
    [
        (("one", "two"), "before training, of another text"),
        (("one", "one"), "before training, of the first 9.9%"),
        ((None, "one"), "before training, of 99 bytes"),
        (("one", "one", "two"), "before training, of 99 bytes"),
    ],
)
def test_a_score_of_other_data_is_of_another_text_and_no_part_of_this_one(tmp_path, data, before):
    found = score(tmp_path, 20, 20, num_bytes=99, masked=False, data=data)
    assert found.before_words == before
    points = [Point(1.0, 1, 1, {"validation/num_bytes": 100})]
    text = held_out_text(tmp_path, points, split="validation")
    if data[-1] == "two" and len(data) == 3:
        assert found.part_words == "the text before the change of data, 100 bytes"
        assert "gzip" not in str(found.worst_first()), "a result of the text to come"
        assert text.words == "a book before the change of data (100 held-out bytes)"
    else:
        assert text.words == "a book (100 of 1,000 held-out bytes)"
