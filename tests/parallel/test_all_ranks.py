from lmtrain.parallel.rank_reports import on_all_ranks


def test_a_process_alone_has_its_own_value():  # several ranks: test_rank_reports.py
    assert on_all_ranks("alone") == ["alone"]
