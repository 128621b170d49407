"""nanoGPT's `train.bin` (https://github.com/karpathy/nanoGPT, data/openwebtext/prepare.py): uint16 ids, no header."""

from pathlib import Path

from lmtrain.data.formats.token_file import TokenFile, headerless


def read(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a file; `dtype` None is uint16 for any vocabulary.

    Raises:
        DataError: It cannot be such a file.
    """
    del vocab_size
    return headerless(path, dtype=dtype or "uint16", what="nanoGPT's .bin")
