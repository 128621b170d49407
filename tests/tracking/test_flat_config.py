from lmtrain.tracking.parameters import flatten, tracking_key


def test_leaves_get_dotted_keys_and_plain_text():
    config = {"optimizer": {"lr": 1e-3, "betas": [0.9, 0.95]}, "seed": 1, "name": "a", "resume": None, "extra": {}}
    assert flatten(config) == {
        "optimizer.lr": "0.001",
        "optimizer.betas": "[0.9, 0.95]",
        "seed": "1",
        "name": "a",
        "resume": "null",
        "extra": "{}",
    }


def test_long_value_is_cut_to_what_the_server_takes():
    assert len(flatten({"text": "x" * 10_000})["text"]) == 6000


def test_key_keeps_its_path_and_loses_what_the_server_refuses():
    assert tracking_key("train/loss") == "train/loss"
    assert tracking_key("lr·μ@x") == "lr___x"
