from lmtrain.report.run_attempts import own_steps, read_attempts
from lmtrain.tracking.fork import read_fork
from tests.report.ledger_folder import PLAN, write, write_fork


def test_own_steps_begin_where_a_run_left_another_one(tmp_path):
    folder = write_fork(tmp_path / "a")
    own = own_steps(PLAN, read_attempts(folder), read_fork(folder))
    assert (own.first, own.last, own.num) == (20, 40, 20)
    assert (own.tokens, own.all_tokens, own.inherited_tokens) == (20_000, 20_000, 20_000)
    assert own_steps(PLAN, [], read_fork(folder)).num == 0, "it has not begun"
    assert own.inherited_words == "20.0K of them of runs/dog"


def test_all_steps_of_a_run_from_its_start_are_its_own(tmp_path):
    own = own_steps(PLAN, read_attempts(write(tmp_path / "a")), None)
    assert (own.num, own.all_tokens, own.inherited_tokens, own.inherited_words) == (20, 20_000, 0, "")
