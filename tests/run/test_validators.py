"""Parts that do not go together: one table of the words, and the key and the fix that the refusal names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.errors import ConfigurationError
from lmtrain.run.builders.device import build_precision
from lmtrain.run.gate import check
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.callbacks import require_end, require_passes
from lmtrain.run.validators.data import require_given, require_size_for_model
from lmtrain.run.validators.optimizer import rate_line, require_settings
from lmtrain.run.validators.parallelism import (
    require_groups,
    require_launcher,
    require_nodes_enough,
    require_parts,
    require_products,
    require_ranks,
    require_workers,
)
from lmtrain.run.validators.task import (
    require_adaptable,
    require_conversations,
    require_examples,
    require_objective,
    require_trained_weights,
)
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.configs import config_of

PROJECT = Path(__file__).parents[2]
Rule = Callable[[RunConfig], object]
DPO = "task=dpo source.paths=[x] init_from=x"
OFFLOAD = "optimizer_cpu_offload=true cluster=h100_8x optimizer=adamw data=synthetic"
GATHER = "precision=fp8 precision.gather=fp8 cluster=h100_8x strategy=fsdp data=synthetic"
STOPPING = "callbacks=[default,early_stopping]"
ROUNDING = "precision=bf16_true precision.stochastic_rounding=true trainer.accelerator=cpu"

# rule, words that pass, words beside them that do not, pattern
MIXTURE = "model=mixtral_tiny strategy=mesh strategy.expert_size=2 trainer.devices=2"
REFUSED: list[tuple[Rule, str, str, str]] = [
    # adapters
    (
        require_adaptable,
        "adapter=lora",
        "strategy=pipeline trainer.devices=2",
        r"^strategy: must .*adapter=lora, got pipeline",
    ),
    (require_adaptable, "adapter=lora", "precision=fp8", r"^precision: must .*got fp8.*bf16_mixed"),
    # conversations and pairs
    (require_conversations, "task=sft source=made_conversations", "source=python_stdlib", r"source=made_conversations"),
    (require_conversations, "task=sft data=synthetic", "data=prepared source=fineweb_edu", r"task=sft"),
    (
        require_conversations,
        "task=sft source=files source.paths=[a]",
        "source.text_column=completion",
        r"Did you mean source\.text_column=null source\.conversations=true",
    ),
    (require_conversations, "task=grpo init_from=x source=smoltalk", "source=wikitext", r"task=grpo"),
    (require_objective, DPO, "init_from=null", r"^init_from: must .*task=dpo.*Did you mean init_from="),
    (require_objective, DPO, "packing=best_fit", r"Did you mean packing=document"),
    (require_objective, DPO, "data=mixture", r"^data: must .*task=dpo.*got mixture"),
    (require_objective, DPO, "strategy=diloco", r"got diloco. Did you mean one of strategy=auto, ddp"),
    # optimizer
    (require_settings, "", "optimizer.row_beta=1.5", r"^optimizer\.row_beta must be .* below 1, got 1\.5"),
    (require_settings, "", "optimizer.lr=100", r"at most 10, got 100.*0\.005 to 0\.3, as"),
    (require_settings, "", "optimizer=sgd optimizer.lr=1e5", r"at most 10,000, got .*0\.001 to 0\.5\?"),
    (planned_setting, OFFLOAD, "cluster=cpu", r"^optimizer_cpu_offload: must be false on a CPU"),
    (planned_setting, OFFLOAD, "spikes=skip", r"Did you mean spikes=none"),
    (planned_setting, OFFLOAD, "optimizer.moments=bf16", r"optimizer\.moments=null"),
    (planned_setting, OFFLOAD, "precision=bf16_true precision.stochastic_rounding=true", r"stochastic_rounding=false"),
    (planned_setting, f"{ROUNDING} optimizer=adamw", "optimizer=sgd", r"optimizer=sgd, .*optimizer=adamw"),
    (build_precision, f"{ROUNDING} optimizer=adamw", "optimizer=sgd", r"optimizer=sgd, .*optimizer=adamw"),
    (planned_setting, "precision=fp8 precision.head=true loss=chunked", "loss=liger", r"Did you mean loss=chunked"),
    (
        planned_setting,
        GATHER,
        "strategy=ddp",
        r"^precision\.gather: must .*got fp8. Did you mean precision\.gather=bf16",
    ),
    (
        planned_setting,
        GATHER,
        "precision.recipe=rowwise",
        r"^precision\.gather: .*Did you mean precision\.recipe=tensor",
    ),
    # callbacks
    (
        require_passes,
        STOPPING,
        "callbacks=[early_stopping,divergence]",
        r"Did you mean 'callbacks=\[default,early_stopping,divergence\]'",
    ),
    (require_passes, STOPPING, "callbacks.validation.num_passes=null", r"callbacks\.validation\.every_steps"),
    (
        require_passes,
        STOPPING,
        "callbacks.early_stopping.metric=validation/los",
        r"got validation/los. Did you mean 'validation/loss'",
    ),
    (
        require_passes,
        f"{STOPPING} weight_average=ema callbacks.early_stopping.metric=validation/ema_loss",
        "weight_average=none",
        r"must be one of .*, got validation/ema_loss",
    ),
    (require_passes, "", "callbacks.validation.every_steps=10", r"num_passes=4 and every_steps=10"),
    (
        require_end,
        "budget.tokens=20K",
        "callbacks=[early_stopping,validation]",
        r"tokens=20.0K; keep .*token_budget of",
    ),
    (require_end, "budget=none budget.steps=3", "~callbacks.token_budget", r"steps=3; keep .*token_budget of"),
    (require_end, "budget.hours=1", "callbacks.time_budget=null", r"at budget.hours=1; keep callbacks.time_budget of"),
    # ranks and groups
    (
        require_ranks,
        "strategy=ddp trainer.devices=2",
        "strategy=single",
        r"^strategy: must be one for 2 ranks, got single. Did you mean one of strategy=auto, ",
    ),
    (require_ranks, "", "strategy=tensor strategy.tensor_size=3 trainer.devices=4", r"strategy\.tensor_size=3"),
    *(
        (require_ranks, "strategy=fsdp trainer.devices=2", f"strategy.timeout_seconds={seconds}", r"Did you mean 600")
        for seconds in ("0", "-5", "1e9", "inf", "nan")
    ),
    (require_nodes_enough, "cluster=h100_8x", "trainer.devices=16", r"Did you mean cluster\.num_nodes=2"),
    (require_nodes_enough, "cluster=h100_8x", "trainer.devices=12", r"Did you mean cluster\.devices_per_node=12"),
    (require_nodes_enough, "trainer.devices=2", "cluster=h100_8x trainer.num_nodes=2", r"cluster\.num_nodes=2"),
    (require_parts, "strategy=tensor trainer.devices=2", "loss=liger", r"^loss: must .*got liger.*loss=chunked"),
    (require_parts, "strategy=tensor trainer.devices=2", "trainer.devices=8", r"model\.num_heads=2 .*Did you mean 2"),
    (require_parts, "strategy=tensor trainer.devices=2 model=mixtral_tiny", "trainer.devices=8", r"num_heads=2 .* 2"),
    (
        require_parts,
        "strategy=fsdp trainer.devices=2",
        "strategy=context +model.num_future_tokens=1",
        r"use strategy=fsdp",
    ),
    *(
        (require_groups, "trainer.lighthouse=http://node0:29510", words, pattern)
        for words, pattern in (
            ("trainer.lighthouse=node0:29510", r"^trainer\.lighthouse: must .*Did you mean http://node0:29510"),
            ("strategy=diloco trainer.devices=2", r"^strategy: must .*trainer\.lighthouse, got diloco. Did you mean"),
            ("strategy=pipeline trainer.devices=2", r"^strategy: must .*trainer\.lighthouse, got pipeline"),
            (DPO, r"^task: must .*got dpo. Did you mean task=sft"),
            ("budget=none budget.hours=1", r"^budget\.hours: must .*got 1.0. Did you mean budget=tokens"),
        )
    ),
    # what a built model would refuse: a plan asks none
    (
        planned_setting,
        "model=nemotron_h_8b cluster=h100_8x strategy=tensor",
        "model.recurrent_layers.num_groups=1 strategy.tensor_size=2",
        r"model\.recurrent_layers\.num_groups=1 into parts",
    ),
    (
        planned_setting,
        "model=mixtral_8x7b cluster=h100_8x strategy=fsdp strategy.expert_size=2",
        "cluster.devices_per_node=6 batch.tokens_per_step=49152",
        r"strategy\.expert_size=2: each expert's gate_up must divide over 3 ranks",
    ),
    (
        planned_setting,
        "model=llama_3_8b cluster=h100_8x strategy=pipeline",
        "+model.num_future_tokens=1",
        r"^model\.num_future_tokens: must be 0 .*Did you mean strategy=fsdp",
    ),
    (require_parts, "strategy=fsdp trainer.devices=2", "strategy=context model=lfm2_350m", r"use strategy=fsdp"),
    (
        require_parts,
        "strategy=tensor trainer.devices=2 model=deepseek_v2_lite",
        "model.experts.shared_width=2815",
        r"model\.experts\.shared_width=2815 .*Did you mean 1",
    ),
    (require_workers, "strategy=diloco trainer.devices=2", "weight_average=ema", r"weight_average=none"),
    (require_workers, "strategy=diloco trainer.devices=2", "spikes=skip", r"Did you mean spikes=none"),
    (require_workers, "strategy=diloco trainer.devices=2", "optimizer=schedule_free", r"one of optimizer=ada"),
    (require_workers, "strategy=diloco trainer.devices=2", "precision=bf16_true", r"precision=auto, bf16_mixed"),
    (require_products, "cluster=a100_8x", "precision=fp8", r"has none in fp8.*precision=bf16_mixed"),
    (require_parts, MIXTURE, "experts.imbalance=9", r"at most strategy\.expert_size=2.*experts\.imbalance=2"),
    (lambda config: require_given(config.values), "", "source=files", r"'source\.paths=\[my/notes\]'"),
]


@pytest.mark.parametrize(
    ("rule", "base", "words", "pattern"), REFUSED, ids=[f"{base} {words}" for _, base, words, _ in REFUSED]
)
def test_parts_that_do_not_go_together_are_refused(rule: Rule, base: str, words: str, pattern: str) -> None:
    rule(config_of(*base.split()))
    with pytest.raises(ConfigurationError, match=pattern):
        rule(config_of(*base.split(), *words.split()))


def test_a_micro_batch_holds_whole_pairs() -> None:
    pairs = ObjectiveFacts(task="dpo", rows_together=2)
    settings = {"context_tokens": 8, "accumulation_micro_steps": 1, "num_ranks": 1}
    require_examples(BatchPlan(sequences_per_micro_step=4, **settings), pairs)
    with pytest.raises(ConfigurationError, match=r"Did you mean batch\.tokens_per_step=32"):
        require_examples(BatchPlan(sequences_per_micro_step=3, **settings), pairs)
    with pytest.raises(ConfigurationError, match=r"got 3. Did you mean 2"):
        require_examples(BatchPlan(sequences_per_micro_step=3, **{**settings, "accumulation_micro_steps": 2}), pairs)


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        ("optimizer=adamw optimizer.lr=5", "1e-5 to 0.01"),
        ("optimizer.lr=0.4", "0.005 to 0.3"),
        ("optimizer.lr=0.3", None),
        ("optimizer.lr=3e-4", "a rate of AdamW goes with optimizer=adamw"),
        *((f"optimizer={path.stem}", None) for path in (PROJECT / "conf/optimizer").glob("*.yaml")),
    ],
)
def test_a_rate_beyond_the_usual_ones_is_warned_of_and_no_shipped_one_is(words: str, usual: str | None) -> None:
    line = rate_line(config_of(*words.split()))
    assert line is None if usual is None else usual in str(line)


def test_several_nodes_need_a_launcher() -> None:
    several = config_of("trainer.num_nodes=4", "trainer.devices=8").trainer
    with pytest.raises(
        ConfigurationError, match=r"num_nodes: must .*got 4.*torchrun --nnodes=4 --nproc-per-node=8.*srun"
    ):
        require_launcher(several, is_launched=False)
    require_launcher(several, is_launched=True)


@pytest.mark.parametrize(("strategy", "size"), [("tensor", "tensor_size"), ("context", "context_size")])
def test_a_step_divides_over_groups_and_a_sequence_within_one(strategy: str, size: str) -> None:
    words = (f"strategy={strategy}", "batch.tokens_per_step=128", "trainer.devices=4", f"strategy.{size}=2")
    divided = config_of("batch.context_tokens=64", *words).divided()
    assert (divided.num_data_ranks, divided.sequences_per_rank, divided.data_rank(3)) == (2, 1, 1)
    with pytest.raises(ConfigurationError, match=rf"context_tokens=33 is not a multiple of strategy\.{size}=2"):
        config_of("batch.context_tokens=33", *words).divided()


def test_a_sequence_divides_over_context_and_tensor_groups_together() -> None:
    words = ("strategy=mesh", "strategy.tensor_size=2", "strategy.context_size=2", "trainer.devices=4")
    with pytest.raises(ConfigurationError, match=r"multiple of .* x strategy\.context_size=4\. Did you mean .*=68 and"):
        config_of("batch.context_tokens=66", *words).divided()


def test_random_weights_are_not_adapted() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean init_from=RUN"):
        require_trained_weights(config_of("adapter=lora"))


def test_a_model_that_follows_an_unknown_vocabulary_is_refused_with_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ByteLevelTokenizer(vocab_size=300).save(tmp_path / "bytes")
    words = ("tokenizer=folder", "tokenizer.path=bytes")
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=300"):
        check(config_of(*words).values)
    for word in ("tokenizer.vocab_size=300", "model.vocab_size=300"):
        require_size_for_model(config_of(*words, word))
