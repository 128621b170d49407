"""OLMo's `.npy` (https://github.com/allenai/OLMo-core): ids without a header, in spite of the name."""

from pathlib import Path

from lmtrain.data.formats.token_file import TokenFile, headerless
from lmtrain.data.layout import narrowest_dtype


def read(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a file; `dtype` None is the narrowest for the vocabulary, OLMo-core's choice.

    Raises:
        DataError: It cannot be such a file; one with numpy's own header is named.
    """
    return headerless(path, dtype=dtype or narrowest_dtype(vocab_size), what="OLMo's headerless .npy")
