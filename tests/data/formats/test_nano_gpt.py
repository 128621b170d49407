import numpy as np

from lmtrain.data.formats.nano_gpt import read

# nanoGPT writes np.memmap(filename, dtype=np.uint16, mode="w+", shape=(num_ids,)) and nothing before or behind it.


def test_a_bare_memmap_of_uint16_is_read(tmp_path):
    path = tmp_path / "train.bin"
    written = np.memmap(path, dtype=np.uint16, mode="w+", shape=(5,))
    written[:] = [50256, 1, 2, 3, 50256]
    written.flush()
    file = read(path, dtype=None, vocab_size=50257)
    assert (file.dtype, file.offset_bytes, file.num_tokens) == ("uint16", 0, 5)
    assert file.ids().tolist() == [50256, 1, 2, 3, 50256]
