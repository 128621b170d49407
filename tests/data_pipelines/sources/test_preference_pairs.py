import json

import numpy as np
import pytest

from data_pipelines.sources.preference_pairs import PreferencePairs
from data_pipelines.stages.encode import encode_block
from data_pipelines.stages.spool import Block
from lmtrain.errors import DataError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import render, render_prompt

TOKENIZER = ByteLevelTokenizer(vocab_size=512, chat=True)

PROMPT = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2?"},
]
GOOD = {"prompt": PROMPT, "chosen": [{"role": "assistant", "content": "4"}], "rejected": "five"}


def pairs(tmp_path, *lines):
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return PreferencePairs(paths=str(tmp_path / "pairs.jsonl"))


def test_both_answers_become_documents_of_one_split_with_loss_on_the_answer_alone(tmp_path) -> None:
    document, other = pairs(tmp_path, GOOD, {"prompt": "Hi", "chosen": "Ho", "rejected": "no"}).documents()
    encoded = encode_block(Block(0, ("train", "train"), (document, other), {}), TOKENIZER, dtype="uint16")["train"]
    assert (len(encoded.ends), encoded.places.tolist()) == (4, [0, 0, 1, 1])
    first, second = np.split(encoded.ids, encoded.ends[:-1])[:2]
    expected, mask = render(TOKENIZER, [*PROMPT, {"role": "assistant", "content": "4"}])
    prompt = len(render_prompt(TOKENIZER, PROMPT))
    assert first.tolist() == [*expected.tolist(), TOKENIZER.end_of_text_id]
    assert second[:prompt].tolist() == first[:prompt].tolist()
    assert encoded.loss_mask is not None
    own = np.split(encoded.loss_mask, encoded.ends[:-1])[0]
    assert not own[:prompt].any()
    assert own[prompt:-1].tolist() == mask[prompt:].tolist()
    assert mask[:prompt].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rejected": "4"},
            r"pairs.jsonl:2: chosen and rejected are equal, and nothing is preferred; remove the line\.",
        ),
        ({"chosen": ""}, r"pairs.jsonl:2 lacks chosen; a line is one object of prompt, chosen, rejected\."),
        (
            {"prompt": PROMPT[1:]},
            r"pairs.jsonl:2, chosen: messages\[0\] \(role assistant\): assistant turn before any user",
        ),
        ({"prompt": PROMPT[:2]}, r"pairs.jsonl:2, chosen: .*nothing to answer"),
        ({"chosen": [{"role": "user", "content": "x"}]}, r"pairs.jsonl:2, chosen: .*two user turns in a row"),
    ],
)
def test_a_line_that_is_no_pair_is_refused_by_its_number(tmp_path, changes, message) -> None:
    with pytest.raises(DataError, match=message):
        list(pairs(tmp_path, GOOD, GOOD | changes).documents())


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(DataError, match=r"source.paths holds nowhere.jsonl, which is no file"):
        PreferencePairs(paths=["nowhere.jsonl"])
