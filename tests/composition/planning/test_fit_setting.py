from dataclasses import replace

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.fit import memory_of
from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.planning.fit_setting import fit_setting
from lmtrain.composition.planning.known_models import model_facts
from lmtrain.composition.planning.setting import planned_setting
from lmtrain.composition.run_config import read_config

WORDS = ["model=llama_3_8b", "cluster=h100_8x", "precision=bf16_mixed", "recompute=every_block", "loss=chunked"]
BATCH = ["batch.context_tokens=8192", "batch.tokens_per_step=131072", "batch.micro_batch_sequences=1"]


def test_a_tensor_group_divides_all_but_the_gathered_inputs_of_the_layer_at_work() -> None:
    config = read_config(compose_config([*WORDS, *BATCH, "strategy=tensor"]), allowed=[])
    setting = planned_setting(config)
    facts = model_facts(config, setting)
    alone = replace(setting, spread=ModelSpread(casts_parameters=True), num_ranks=1)
    cut, whole = (memory_of(fit_setting(one, facts), config.divided(config.batch)) for one in (setting, alone))
    assert (cut.weights, cut.optimizer) == (whole.weights // 8, whole.optimizer // 8)
    inputs = 2 * 8192 * 4096 * 2  # of attention and of the feed-forward, in bf16
    assert cut.activations == (whole.activations + 7 * inputs) // 8
    assert cut.workspace == whole.workspace // 8
