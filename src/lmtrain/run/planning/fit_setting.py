"""From a config's choices and a model's facts to the setting behind the memory of a device."""

from typing import Final

from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.training_plan.fit import Setting, TensorGroup
from lmtrain.run.planning.setting import PlannedSetting

INPUTS_OF_A_LAYER: Final = 2  # of attention and of the feed-forward


def fit_setting(setting: PlannedSetting, facts: ModelFacts) -> Setting:
    """Return the setting behind the memory of a device."""
    setting.spread.pipeline.require_layers(len(facts.shape.attention))
    return Setting(
        facts=facts,
        precision=setting.bytes_of,
        optimizer=setting.state,
        is_sharded=setting.spread.shards_over is not None and setting.num_ranks > 1,
        tensor=_tensor_group(setting, facts),
        slices=setting.spread.context_ranks,
        pipeline=setting.spread.pipeline,
        keeps_gradients=setting.keeps_gradients,
        keeps_whole_gradients=setting.spread.shards_over is not None and not setting.spread.reduces_every_micro_step,
        keeps_gathered_blocks=not setting.spread.reshard_after_forward,
        most_shards=setting.spread.most_shards,
        device_bytes=setting.cluster.device_bytes,
        host=setting.host,
        offloads_state=setting.offloads_state,
        takes_back=setting.takes_back,
        steps_together=setting.spread.equals_one_process,
        example_rows=setting.example_rows,
    )


def _tensor_group(setting: PlannedSetting, facts: ModelFacts) -> TensorGroup:
    """Return the group behind the memory of a device; recomputed layers gather their inputs again, one at a time."""
    num_kept = round(len(facts.shape.attention) * (1 - setting.recompute.share))
    return TensorGroup(
        num_ranks=setting.spread.tensor_ranks,
        input_bytes=facts.shape.width * setting.bytes_of.activations,
        num_inputs=INPUTS_OF_A_LAYER * max(1, num_kept),
    )
