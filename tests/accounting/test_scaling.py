from lmtrain.accounting.scaling import Scaling

FOUND = Scaling(
    rule="width_transfer",
    options={"base_width": 64, "base_head_width": None},
    base={"optimizer.weight_decay": 0.1, "optimizer.lr_multipliers.head": None, "batch.tokens_per_step": 2048},
    derived={"optimizer.weight_decay": 0.4, "optimizer.lr_multipliers.head": 0.25, "batch.tokens_per_step": 2**20},
)


def test_a_line_says_the_rule_and_every_setting_beside_its_base() -> None:
    assert FOUND.line() == (
        "scaling=width_transfer (base_width=64): optimizer.weight_decay=0.4 (base 0.1), "
        "optimizer.lr_multipliers.head=0.25, batch.tokens_per_step=1048576 (base 2048)"
    )


def test_what_stays_is_shown_once_although_its_last_digit_differs() -> None:
    found = Scaling(rule="x", options={}, base={"a": 0.06}, derived={"a": 0.06 * 2**0.5 / 2**0.5})
    assert found.rows() == [("a", "0.06")]
    assert found.title == "x"


def test_a_rule_that_derives_nothing_says_so() -> None:
    assert Scaling(rule="x", options={}, base={}, derived={}).line() == "scaling=x: nothing changes"
