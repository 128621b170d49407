from lmtrain.accounting.observed.step_changes import Change, ChangeOutcome, best_first, without_gain

WIDER = Change(words=("batch.tokens_per_step=4096",), why="fewer steps", most_saved=0.2)
FORMAT = Change(words=("precision=auto",), why="products in bf16")
COMPILED = Change(words=("compile=auto",), why="compiles once")


def test_what_was_measured_comes_first_by_its_gain_then_what_was_not_tried():
    measured, better = ChangeOutcome(change=WIDER, saved=0.1), ChangeOutcome(change=FORMAT, saved=0.5)
    untried = ChangeOutcome(change=COMPILED, saved=None)
    assert best_first([untried, measured, better]) == [better, measured, untried]
    assert best_first([untried, ChangeOutcome(change=WIDER, saved=None)])[0].change == WIDER


def test_a_line_says_what_was_measured_or_that_nothing_was():
    assert (
        ChangeOutcome(change=FORMAT, saved=0.5).line()
        == "precision=auto: 100% faster, measured here (products in bf16)"
    )
    assert ChangeOutcome(change=WIDER, saved=None).line() == (
        "batch.tokens_per_step=4096: fewer steps, up to 25% faster a token; not tried"
    )
    assert ChangeOutcome(change=COMPILED, saved=None).line() == "compile=auto: compiles once; not tried"


def test_what_did_not_help_is_named_as_such():
    useless = ChangeOutcome(change=FORMAT, saved=0.01)
    assert best_first([useless]) == []
    assert (
        without_gain([useless, ChangeOutcome(change=WIDER, saved=-0.3)]) == "precision=auto, batch.tokens_per_step=4096"
    )
    assert useless.to_json() == {
        "change": ["precision=auto"],
        "why": "products in bf16",
        "most_saved": None,
        "saved": 0.01,
    }
