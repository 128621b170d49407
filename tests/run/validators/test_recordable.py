"""A plan refuses what training with recorded micro-steps would."""

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.validators.recordable import require_recordable
from tests.configs import config_of

ON = ("compile.cuda_graphs=true", "cluster=h100_8x", "trainer.devices=1")


def test_a_plan_for_a_gpu_may_record_from_any_machine() -> None:
    assert planned_setting(config_of(*ON)).num_ranks == 1


@pytest.mark.parametrize(
    "word", ["precision=fp16_mixed", "precision=fp8", "strategy=ddp", "trainer.devices=2", "recompute=selective"]
)
def test_a_plan_refuses_what_cannot_be_recorded(word: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^compile\.cuda_graphs=true: .*; nearest valid: .*\.$"):
        planned_setting(config_of(*ON[:2], *([] if "devices" in word else ON[2:]), word))


def test_nothing_is_asked_where_nothing_is_recorded() -> None:
    require_recordable(config_of("precision=fp16_mixed", "strategy=ddp"), num_ranks=2, device="cpu")
