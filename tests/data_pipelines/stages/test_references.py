import gzip
import lzma
import shutil
import subprocess

import numpy as np
import pytest

from data_pipelines.stages import references
from data_pipelines.stages.references import compress
from lmtrain.data.shard_writer import ShardWriter
from lmtrain.data.shards import TokenSplit
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

TEXTS = [f"Some text {number**3} that compresses {number % 7} times\n" * (number % 4 + 1) for number in range(200)]


TOKENIZER = ByteLevelTokenizer()


@pytest.fixture
def tokens(tmp_path):
    writer = ShardWriter(tmp_path, split="validation", dtype="uint16", shard_tokens=500)
    for text in TEXTS:
        ids = [*TOKENIZER.encode(text), TOKENIZER.end_of_text_id]
        writer.append(np.array(ids), np.array([len(ids)]))
    return TokenSplit(tmp_path, dtype="uint16", split=writer.close(text_bytes=1))


def test_rates_are_those_of_the_standard_library(tokens):
    text = "".join(TEXTS).encode()
    reached = compress(tokens, TOKENIZER)
    assert reached.text_bytes == len(text)
    # gzip.compress writes the same header of ten bytes.
    assert reached.gzip_bits_per_byte == round(8 * len(gzip.compress(text, 9, mtime=0)) / len(text), 4)
    xz = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    assert reached.xz_bits_per_byte == round(8 * len(xz) / len(text), 4)


@pytest.mark.parametrize(("program", "rate"), [("gzip -9nc", "gzip_bits_per_byte"), ("xz -9ec", "xz_bits_per_byte")])
def test_rates_are_those_of_the_programs(tokens, program, rate):
    if shutil.which(program.split()[0]) is None:
        pytest.skip(f"no {program.split()[0]} here")
    text = "".join(TEXTS).encode()
    compressed = subprocess.run(program.split(), input=text, capture_output=True, check=True).stdout
    # 0.5 %: versions of the programs differ by a few bytes.
    assert getattr(compress(tokens, TOKENIZER), rate) == pytest.approx(8 * len(compressed) / len(text), rel=5e-3)


def test_of_a_long_text_the_beginning_is_compressed(tokens, monkeypatch):
    monkeypatch.setattr(references, "MAX_BYTES", 1000)
    assert compress(tokens, TOKENIZER).text_bytes == 1000
