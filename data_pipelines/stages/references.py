"""General compressors' results on the held-out text: the bits per byte for a model to beat."""

import lzma
import zlib
from concurrent.futures import ThreadPoolExecutor

from lmtrain.data.manifest import References
from lmtrain.data.shards import TokenSplit
from lmtrain.tokenizers.base import Tokenizer

MAX_BYTES = 4_000_000  # xz -9e reads about 1.5 MB/s
IDS_AT_ONCE = 1 << 16
LEAST_DICTIONARY_BYTES = 1 << 16


def compress(tokens: TokenSplit, tokenizer: Tokenizer) -> References:
    """Compress a split's documents, back to back, with `gzip -9` and `xz -9e`; the first 4 MB of a longer one."""
    text = _text_of(tokens, tokenizer)
    with ThreadPoolExecutor(max_workers=2) as executor:
        gzip, xz = executor.map(lambda codec: len(codec(text)) * 8 / len(text), (_gzip, _xz))
    return References(text_bytes=len(text), gzip_bits_per_byte=round(gzip, 4), xz_bits_per_byte=round(xz, 4))


def _text_of(tokens: TokenSplit, tokenizer: Tokenizer) -> bytes:
    text = bytearray()
    for start in range(0, tokens.num_tokens, IDS_AT_ONCE):
        ids = tokens.window(start, min(IDS_AT_ONCE, tokens.num_tokens - start))
        text += tokenizer.decode_bytes(ids.tolist())
        if len(text) >= MAX_BYTES:
            break
    return bytes(text[:MAX_BYTES])


def _gzip(text: bytes) -> bytes:
    compressor = zlib.compressobj(level=9, wbits=31)  # a gzip header without a name or a time
    return compressor.compress(text) + compressor.flush()


def _xz(text: bytes) -> bytes:
    # A dictionary of 64 MB has tables of 600; one as long as the text finds the same matches.
    dict_size = max(1 << (len(text) - 1).bit_length(), LEAST_DICTIONARY_BYTES)
    preset = 9 | lzma.PRESET_EXTREME
    return lzma.compress(text, filters=[{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": dict_size}])
