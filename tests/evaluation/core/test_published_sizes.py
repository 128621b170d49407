from lmtrain.evaluation.core.published_sizes import CORE_SIZES


def test_the_bundle_has_22_tasks_and_choices_as_its_baselines_say():
    assert len(CORE_SIZES) == 22
    assert sum(items for items, _ in CORE_SIZES.values()) == 91_037
    assert sum(items * rows for items, rows in CORE_SIZES.values()) == 275_985
    assert CORE_SIZES["bigbench_language_identification"][1] == round(100 / 9.1)
