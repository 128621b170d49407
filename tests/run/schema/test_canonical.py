from lmtrain.run.compose.compose import compose_config
from lmtrain.run.schema.canonical import canonical
from lmtrain.run.schema.check import check_node

MODEL = {"_target_": "lmtrain.models.llama.Llama", "width": 128, "num_layers": 2}


def test_a_setting_that_repeats_its_default_is_left_out():
    assert canonical({**MODEL, "qk_norm": False, "norm_eps": "1e-5"}, key="model") == canonical(MODEL, key="model")
    assert canonical({**MODEL, "qk_norm": True}, key="model") != canonical(MODEL, key="model")


def test_amounts_are_numbers_and_words_stay():
    assert canonical({"num_tokens": "20K", "name": "a word"}, key="data") == {"num_tokens": 20_000.0, "name": "a word"}


def test_a_composed_node_and_its_checked_one_are_alike():
    for name in ("model", "optimizer", "schedule", "loss", "packing"):
        node = compose_config([])[name]
        assert canonical(check_node(node, key=name), key=name) == canonical(node, key=name)
