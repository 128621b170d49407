import gzip
import lzma
import shutil
import subprocess

import pytest

from data_pipelines.sources.base import Document
from data_pipelines.stages import references
from data_pipelines.stages.references import compress
from data_pipelines.stages.spool import Spool

TEXTS = [f"Some text {number**3} that compresses {number % 7} times\n" * (number % 4 + 1) for number in range(200)]


@pytest.fixture
def parts(tmp_path):
    spool = Spool(tmp_path)
    for number, text in enumerate(TEXTS):
        spool.append("validation", Document(f"{number}", text))
    return spool.finish()["validation"]


def test_rates_are_those_of_the_standard_library(parts):
    text = "".join(TEXTS).encode()
    reached = compress(parts)
    assert reached.text_bytes == len(text)
    # gzip.compress writes the same header of ten bytes.
    assert reached.gzip_bits_per_byte == round(8 * len(gzip.compress(text, 9, mtime=0)) / len(text), 4)
    xz = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    assert reached.xz_bits_per_byte == round(8 * len(xz) / len(text), 4)


@pytest.mark.parametrize(("program", "rate"), [("gzip -9nc", "gzip_bits_per_byte"), ("xz -9ec", "xz_bits_per_byte")])
def test_rates_are_those_of_the_programs(parts, program, rate):
    if shutil.which(program.split()[0]) is None:
        pytest.skip(f"no {program.split()[0]} here")
    text = "".join(TEXTS).encode()
    compressed = subprocess.run(program.split(), input=text, capture_output=True, check=True).stdout
    # 0.5 %: versions of the programs differ by a few bytes.
    assert getattr(compress(parts), rate) == pytest.approx(8 * len(compressed) / len(text), rel=5e-3)


def test_of_a_long_text_the_beginning_is_compressed(parts, monkeypatch):
    monkeypatch.setattr(references, "MAX_BYTES", 1000)
    assert compress(parts).text_bytes == 1000
