import bz2
import gzip
import lzma
import zlib

import fsspec
import pyarrow as pa
import pytest

from data_pipelines.sources import compression
from data_pipelines.sources.compression import is_compressed, open_plain, open_raw, without_compression
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.local_files import find_local
from lmtrain.errors import DataError

TEXT = b"".join(b"line %d of a text that compresses well\n" % number for number in range(20_000))


def zstd(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESSORS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


def read_all(file):
    pieces = []
    with open_plain(file) as content:
        while piece := content.read(10_000):
            pieces.append(piece)
    return b"".join(pieces)


def written(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    (file,) = find_local(str(tmp_path / name))
    return file


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS, ".GZ"])
def test_every_compression_gives_the_same_bytes(suffix, tmp_path):
    compress = COMPRESSORS.get(suffix.lower(), bytes)
    assert read_all(written(tmp_path, f"a.txt{suffix}", compress(TEXT))) == TEXT


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_files_put_one_behind_another_are_read_to_the_end(suffix, tmp_path):
    compress = COMPRESSORS[suffix]
    assert read_all(written(tmp_path, f"a.txt{suffix}", compress(TEXT) + compress(b"more"))) == TEXT + b"more"


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_file_that_breaks_off_is_refused_with_the_place(suffix, tmp_path):
    content = COMPRESSORS[suffix](TEXT)
    file = written(tmp_path, f"a.txt{suffix}", content[: len(content) // 2])
    place = r"after [\d,]+ bytes of content, by byte [1-9][\d,]* of the file"
    with pytest.raises(DataError, match=rf"a\.txt{suffix} is damaged {place}: .*Fetch it again"):
        read_all(file)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_flipped_bit_is_refused(suffix, tmp_path):
    content = bytearray(COMPRESSORS[suffix](TEXT))
    content[len(content) // 2] ^= 4
    with pytest.raises(DataError, match="is damaged after"):
        read_all(written(tmp_path, f"a.txt{suffix}", bytes(content)))


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_file_that_is_not_what_its_suffix_says_is_refused(suffix, tmp_path):
    with pytest.raises(DataError, match="is damaged after 0 bytes"):
        read_all(written(tmp_path, f"a.txt{suffix}", TEXT))


def test_a_byte_order_mark_is_left_out(tmp_path):
    assert read_all(written(tmp_path, "a.txt", b"\xef\xbb\xbftext\xef\xbb\xbf")) == b"text\xef\xbb\xbf"


def test_the_place_in_the_file_itself_is_known(tmp_path):
    file = written(tmp_path, "a.txt.gz", gzip.compress(TEXT))
    with open_plain(file) as content:
        content.read(10)
        assert 0 < content.num_raw_bytes() <= file.num_bytes


def test_a_file_elsewhere_is_opened_by_its_address():
    fsspec.filesystem("memory").pipe("/bucket/a.txt.gz", gzip.compress(b"text"))
    file = FoundFile(name="a.txt.gz", address="memory://bucket/a.txt.gz", num_bytes=1, changed="1")
    assert read_all(file) == b"text"


def test_a_file_that_is_gone_is_refused(tmp_path):
    file = written(tmp_path, "a.txt", b"x")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"a\.txt cannot be read: No such file"), open_raw(file):
        pass


def test_names_with_and_without_a_compression():
    assert str(without_compression("notes/a.jsonl.zst")) == "notes/a.jsonl"
    assert str(without_compression("notes/a.jsonl")) == "notes/a.jsonl"
    assert is_compressed("a.XZ")
    assert not is_compressed("a.txt")


def test_an_xz_file_that_asks_for_a_dictionary_of_4_gib_is_refused(tmp_path):
    content = bytearray(lzma.compress(b"text"))
    length = (content[12] + 1) * 4  # of the block's header, which begins at 12
    dictionary = content.index(b"\x21\x01", 12) + 2  # the filter LZMA2, with one byte of settings
    content[dictionary] = 40
    content[8 + length : 12 + length] = zlib.crc32(content[12 : 8 + length]).to_bytes(4, "little")
    assert lzma.decompress(content) == b"text", "it is sound"
    with pytest.raises(DataError, match=r"after 0 bytes of content, .*: Memory usage limit exceeded"):
        read_all(written(tmp_path, "a.txt.xz", bytes(content)))


@pytest.mark.parametrize("suffix", [".bz2", ".xz", ".zst"])
def test_content_a_thousand_times_its_file_is_refused(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "MOST_CONTENT_BYTES", 1 << 20)
    file = written(tmp_path, f"a.txt{suffix}", COMPRESSORS[suffix](bytes(1 << 25)))
    with pytest.raises(DataError, match=r"a\.txt\.\w+: [\d,]+ bytes of content are in the first [\d,]+; unpack it"):
        read_all(file)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"text", lzma.compress(b"text")[:-1]])
def test_an_xz_file_of_less_than_a_stream_is_refused(content, tmp_path):
    with pytest.raises(DataError, match="is damaged after"):
        read_all(written(tmp_path, "a.txt.xz", content))


def test_xz_files_may_be_padded(tmp_path):
    content = lzma.compress(TEXT) + bytes(8) + lzma.compress(b"more") + bytes(1 << 17)
    assert read_all(written(tmp_path, "a.txt.xz", content)) == TEXT + b"more"
