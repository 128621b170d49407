from tests.callbacks.conftest import dataset_folder, make_run

__all__ = ["dataset_folder", "make_run"]
