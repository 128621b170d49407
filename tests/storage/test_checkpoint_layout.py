from lmtrain.storage import checkpoint_layout


def test_names_stay_those_of_checkpoints_that_were_written_before() -> None:
    names = checkpoint_layout
    assert (names.STATE, names.SHARDED, names.REST) == ("state.pt", "sharded", "meta.pt")
    assert (names.WEIGHTS, names.OPTIMIZERS, names.sharded_name(1)) == ("state_dict", "optimizer_states", "optimizer_1")
