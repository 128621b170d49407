"""llm.c's `.bin` (https://github.com/karpathy/llm.c, dev/data/data_common.py): 256 int32 of header, then the ids.

Header: magic, version, number of ids. 20240520 version 1 has uint16 ids (GPT-2), 20240801 version 7 uint32 ids
(Llama 3). NeMo AutoModel's 278895051 version 1 gives the bytes of an id in the fourth number.
"""

from pathlib import Path

import numpy as np

from lmtrain.data.formats.token_file import TokenFile, size_of
from lmtrain.data.layout import DTYPES
from lmtrain.errors import DataError

HEADER_BYTES = 256 * 4
GPT_2, LLAMA_3, AUTO_MODEL = 20240520, 20240801, 278895051
VERSIONS = {GPT_2: 1, LLAMA_3: 7, AUTO_MODEL: 1}
OF_BYTES = {2: "uint16", 4: "uint32"}


def read(path: Path, *, dtype: str | None, vocab_size: int) -> TokenFile:
    """Describe a file by its header.

    Raises:
        DataError: Another magic number, version, type or size than in the header.
    """
    del vocab_size
    num_bytes = size_of(path)
    header = np.fromfile(path, dtype="<i4", count=256)
    magic, version, num_tokens, bytes_per_id = (int(value) for value in header[:4]) if len(header) == 256 else [0] * 4
    if magic not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise DataError(
            f"{path} begins with {magic}, not with a magic number of llm.c ({known}): nanogpt has no header."
        )
    if version != VERSIONS[magic]:
        raise DataError(f"{path} is version {version} of magic {magic}; this reads version {VERSIONS[magic]}.")
    found = OF_BYTES.get(bytes_per_id) if magic == AUTO_MODEL else {GPT_2: "uint16", LLAMA_3: "uint32"}[magic]
    if found is None:
        raise DataError(f"{path} has ids of {bytes_per_id} bytes; this reads 2 and 4.")
    if dtype not in (None, found):
        raise DataError(f"data.folder.dtype={dtype} differs from {path}: {found}.")
    expected = HEADER_BYTES + num_tokens * DTYPES[found].itemsize
    if num_tokens < 1 or num_bytes != expected:
        raise DataError(f"{path} has {num_bytes:,} bytes, its header declares {num_tokens:,} ids: {expected:,} bytes.")
    return TokenFile(path, found, offset_bytes=HEADER_BYTES, num_tokens=num_tokens)
