from lmtrain.accounting.observed.time_accounts import balance
from lmtrain.report.runs.attempts import own_steps, read_attempts
from lmtrain.report.ledger.run_ledger import read_ledger
from lmtrain.tracking.fork import read_fork
from lmtrain.tracking.timekeeping.events import EventLog
from lmtrain.tracking.timekeeping.set_up_time import FILE
from tests.report.ledger_folder import PLAN, write, write_fork


def test_own_steps_begin_where_a_run_left_another_one(tmp_path):
    folder = write_fork(tmp_path / "a")
    own = own_steps(PLAN, read_attempts(folder), read_fork(folder))
    assert (own.first, own.last, own.num) == (20, 40, 20)
    assert (own.tokens, own.all_tokens, own.inherited_tokens) == (20_000, 20_000, 20_000)
    assert own_steps(PLAN, [], read_fork(folder)).num == 0, "it has not begun"
    assert own.inherited_words == "20.0K of them of runs/dog, no longer there"


def test_all_steps_of_a_run_from_its_start_are_its_own(tmp_path):
    own = own_steps(PLAN, read_attempts(write(tmp_path / "a")), None)
    assert (own.num, own.all_tokens, own.inherited_tokens, own.inherited_words) == (20, 20_000, 0, "")


def test_a_pause_under_way_has_its_kind_of_time_also_where_a_kill_ended_it(tmp_path):
    log = EventLog(tmp_path, 0)
    log.mark_attempt(1, num_devices=1, compiles_first=True)
    kinds = []
    for name in ("checkpoint", "validation", "validation"):
        with log.pause(name):
            (attempt,) = read_attempts(tmp_path)
            kinds.append(attempt.pause and attempt.pause[0])
        log.flush()
        assert read_attempts(tmp_path)[0].pause is None
    assert kinds == ["checkpoint", "compile", "evaluation"]


def test_an_attempt_that_ended_in_its_set_up_is_counted(tmp_path):
    folder = write(tmp_path / "a")
    recorded = read_attempts(folder)
    last = recorded[-1].number
    for number in (last, last + 1):
        attempt = folder / "attempts" / str(number)
        attempt.mkdir(parents=True)
        (attempt / FILE).write_text('{"started_at": 1000.0, "seen_at": 1030.0, "num_devices": 4}')
    *others, killed = read_attempts(folder)
    assert others == recorded, "their events say more"
    assert (killed.number, killed.wall_seconds, killed.num_devices) == (last + 1, 30.0, 4)
    before, now = balance(recorded), read_ledger(folder).time
    assert now.num_attempts == before.num_attempts + 1
    assert now.seconds["setup"] == before.seconds.get("setup", 0.0) + 30.0
    assert now.wall_seconds == before.wall_seconds + 30.0
