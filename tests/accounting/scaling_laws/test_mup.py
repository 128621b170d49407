from lmtrain.accounting.scaling_laws.mup import width_transfer


def test_sixteen_times_the_width_under_adam() -> None:
    factors = width_transfer(2048, base_width=128, head_width=64, base_head_width=64, update="coordinates")
    assert (factors.matrix_lr, factors.head_lr, factors.weight_decay) == (1 / 16, 1 / 16, 16.0)
    assert (factors.matrix_init_std, factors.head_init_std, factors.attention) == (1 / 4, 1 / 16, 1.0)


def test_an_orthogonal_update_keeps_its_rate_and_decay() -> None:
    factors = width_transfer(2048, base_width=128, head_width=64, base_head_width=64, update="spectrum")
    assert (factors.matrix_lr, factors.weight_decay) == (1.0, 1.0)
    assert (factors.head_lr, factors.head_init_std, factors.matrix_init_std) == (1 / 16, 1 / 16, 1 / 4)
