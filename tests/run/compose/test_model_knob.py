import pytest

from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.compose.unknown_words import unknown_key


@pytest.mark.parametrize(("typed", "meant"), [("num_layers=5", 5), ("width=768", 12), ("num_heads=6", 12)])
def test_a_size_of_a_model_with_one_number_for_all_is_answered_by_that(typed: str, meant: int) -> None:
    config = compose_config(["model=nano"])
    key = f"model.{typed.partition('=')[0]}"
    told = unknown_key(key, typed=f"model.{typed}", config=config, conf=conf_folder())
    assert told == f"model.{typed}: there is no key {key}: its sizes follow model.depth; write model.depth={meant}."
