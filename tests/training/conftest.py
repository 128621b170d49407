import pytest

from lmtrain.data.synthetic import synthetic
from tests.callbacks.conftest import dataset_folder, make_run


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    """A small data set: 3,072 tokens to train on and 512 of each held-out split, of 257 ids."""
    return synthetic(root=str(tmp_path_factory.mktemp("data")), vocab_size=257, num_tokens=3000)


__all__ = ["dataset_folder", "make_run"]
