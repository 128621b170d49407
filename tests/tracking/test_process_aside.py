import sys

from lmtrain.tracking.machine import start_process_aside


def test_a_process_beside_a_run_has_no_place_among_its_ranks_and_its_words_join_a_log(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    log = tmp_path / "aside.log"
    log.write_text("before\n")
    words = "import os; print(os.environ.get('RANK'), os.environ['MORE'], os.getsid(0) == os.getpid())"
    process = start_process_aside([sys.executable, "-c", words], log=log, environment={"MORE": "yes"})
    assert process.wait() == 0
    assert log.read_text() == "before\nNone yes True\n"
