import shlex

import pytest

from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.foreign.equivalents import Together
from lmtrain.run.compose.meant import MeantWord
from lmtrain.run.planning.tried_answers import tried, tried_meant, tried_refusal


@pytest.mark.parametrize(
    ("words", "own", "whole"),
    [
        (["batch.context_tokens=4096", "batch.micro_batch_sequences=4"], [], 16384),
        (["trainer.devices=3"], [], 2304),
        (["batch.tokens_per_step=1000"], ["trainer.devices=2", "trainer.num_nodes=2"], 1024),
        (["strategy=tensor", "strategy.tensor_size=2", "trainer.devices=4", "batch.tokens_per_step=2560"], [], None),
        (["batch.context_tokens=4096"], ["experiment=llama_3_2_1b_adamw"], None),  # whose batch it divides
        (["batch.context_tokens=4096"], ["seed=1,2", "-m", "--cfg", "job", "make.folder=x"], 4096),
    ],
)
def test_a_step_of_the_answers_beside_the_words_typed_is_whole_passes(words, own, whole):
    found = tried(Together(tuple(words)), own)
    tokens = [f"batch.tokens_per_step={whole}"] if whole else []
    assert [*found.words] == [word for word in words if not (whole and "tokens_per_step" in word)] + tokens
    assert bool(found.notes) == bool(whole)


def test_another_mistake_of_the_command_is_told_beside_the_answers() -> None:
    found = tried(Together(("optimizer.lr=1",)), ["optimizer.lrr=2"])
    assert found.notes[0].startswith("optimizer.lrr=2: there is no key optimizer.lrr")


def test_a_setting_of_another_option_than_the_chosen_one_is_left_out() -> None:
    found = tried(Together(("schedule=linear", "schedule.warmdown_fraction=0.8", "seed=1")), [])
    assert found.words == ("schedule=linear", "seed=1")
    assert found.notes[0].startswith("schedule.warmdown_fraction=0.8 is left out: there is no key")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("warmup_steps=500", "schedule.warmup_steps=500 budget.steps=1250"),
        ("warmup_steps=500 max_steps=1000", "schedule.warmup_steps=400 budget.steps=1000"),
        ("warmup_steps=500 budget.tokens=1M", "schedule.warmup_steps=195"),
        ("num_query_groups=4", "model.num_kv_heads=2"),
        ("n_head=3 n_embd=100", "model.num_heads=3 model.width=102 model.feed_forward_width=400"),
        ("n_layer=2", "model.num_layers=2 'model.value_embedding_layers=[1]'"),
        ("lr=1e-3 hydra/sweeper=optuna -m", "optimizer.lr=1e-3"),
        (
            "--tensor-model-parallel-size=4 --pipeline-model-parallel-size=2",
            "strategy=tensor strategy.tensor_size=4 trainer.devices=4",
        ),
        ("num_processes=8 nnodes=2", "trainer.devices=4 trainer.num_nodes=2"),
        ("gpus=8 nodes=2", "trainer.devices=8 trainer.num_nodes=2 batch.tokens_per_step=4096"),
        (
            "cluster=h100_8x gpus=16 nodes=4",
            "cluster.devices_per_node=4 cluster.num_nodes=4 batch.tokens_per_step=4096",
        ),
    ],
)
def test_a_value_that_fits_nothing_becomes_the_nearest_that_does(words: str, meant: str) -> None:
    with pytest.raises(MeantWord) as refused:
        parse_arguments(words.split())
    assert refused.value.foreign is not None
    answer = tried_refusal(refused.value.foreign)
    assert isinstance(answer, MeantWord)
    assert answer.meant.partition(" (")[0] == meant
    if "nearest valid" in str(answer):
        theirs = {each.typed for each in refused.value.foreign.words}
        own = [word for word in words.split() if word not in theirs]
        assert tried(Together(tuple(shlex.split(meant))), own).notes == ()


# Commands as the programs' own examples have them, with the words that are not to be missing here.
COMMANDS = {
    "nanoGPT": (
        "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1 "
        "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 "
        "--lr_decay_iters=2000 --dropout=0.0 --init_from=scratch",
        "trainer.accelerator=cpu compile=none batch.context_tokens=64 batch.tokens_per_step=768 model.width=128",
    ),
    "torchtitan": (
        "--model.name llama3 --model.flavor 8B --training.steps 1000 --training.local_batch_size 8 "
        "--training.seq_len 8192 --parallelism.data_parallel_shard_degree -1 "
        "--parallelism.tensor_parallel_degree 1 --compile.enable --activation_checkpoint.mode selective "
        "--optimizer.lr 3e-4 --lr_scheduler.warmup_steps 200",
        "model=llama_3_8b strategy=fsdp recompute=selective batch.tokens_per_step=65536",
    ),
    "nanochat": (
        "--depth=24 --target-param-data-ratio=8 --device-batch-size=16 --total-batch-size -1 --fp8 --run d24 "
        "--core-metric-every=999999 --sample-every=-1 --save-every -1 --head-dim 128 --aspect-ratio=64",
        "model.depth=24 budget.tokens_per_parameter=8 precision=fp8 run.name=d24",
    ),
    "Megatron-LM": (
        "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 8 --global-batch-size 64 --train-iters 1000 --lr "
        "6e-4 --min-lr 6e-5 --lr-decay-style cosine --lr-warmup-iters 100 --clip-grad 1.0 --bf16 "
        "--tensor-model-parallel-size 2 --use-distributed-optimizer --eval-iters 10 --save-interval 500 "
        "--tokenizer-type GPT2BPETokenizer --split 969,30,1 --recompute-activations",
        "model.width=768 batch.tokens_per_step=65536 strategy=fsdp_tensor strategy.tensor_size=2 trainer.devices=2",
    ),
    "transformers": (
        "--model_name_or_path gpt2 --dataset_name a/b --dataset_config_name c --per_device_train_batch_size 8 "
        "--max_steps -1 --gradient_accumulation_steps 4 --do_train --do_eval --output_dir out/clm "
        "--lr_scheduler_type cosine --bf16 True",
        "init_from=runs/base source.name=a/b source.config=c batch.tokens_per_step=8192 run.name=clm",
    ),
    "OLMo-core": (
        "--train_module.optim.lr=6e-3 --data_loader.global_batch_size=262144 "
        "--train_module.rank_microbatch_size=16384 --trainer.max_duration.value=1 "
        "--trainer.max_duration.unit=epochs --sequence-length=1024 --save-folder=out/x",
        "budget.epochs=1 batch.tokens_per_step=262144 batch.micro_batch_sequences=16 batch.context_tokens=1024",
    ),
    "axolotl": (
        "base_model=a/b optimizer=adamw_bnb_8bit sequence_len=2048 micro_batch_size=2 "
        "gradient_accumulation_steps=4 bf16=auto num_epochs=1 lora_r=32 "
        "lora_target_modules=[gate_proj,down_proj] val_set_size=0.1 sample_packing=true tf32=false",
        "optimizer=adamw_8bit adapter.rank=32 adapter.targets=[up,down] batch.tokens_per_step=16384 packing=best_fit",
    ),
    "NeMo": (
        "trainer.devices=2 trainer.max_steps=100 trainer.val_check_interval=50 trainer.precision=bf16 "
        "model.optim.lr=1e-4 model.micro_batch_size=4 model.global_batch_size=12 model.encoder_seq_length=512 "
        "exp_manager.exp_dir=out",
        "budget.steps=100 callbacks.validation.every_steps=50 batch.tokens_per_step=8192 run.name=out",
    ),
}


@pytest.mark.parametrize("program", COMMANDS)
def test_a_command_of_another_program_is_answered_by_one_that_composes(program: str) -> None:
    typed, wanted = COMMANDS[program]
    with pytest.raises(MeantWord) as refused:
        parse_arguments(typed.split())
    assert refused.value.foreign is not None
    answer = tried_refusal(refused.value.foreign)
    assert isinstance(answer, MeantWord)
    assert {*wanted.split()} <= {*shlex.split(answer.meant)}
    assert not [line for line in answer.lines if ": " not in line]
    assert not [line for line in answer.lines if "there is no" in line or "is left out" in line]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("seed=1 run.root=my runs", "run.root=my runs: a space ends a value; write 'run.root=my runs'."),
        ("optimizer=adamw hot", "hot stands alone behind optimizer=adamw: a word is KEY=VALUE or"),
        ("optimizer.lr=1e-3 hot", "hot stands alone behind optimizer.lr=1e-3: "),
        ("no_such=a b", "b stands alone behind no_such=a: "),
        ("optimizer.lrr=2 run.root=my runs", "run.root=my runs: a space ends a value"),  # the first is no fault of it
    ],
)
def test_a_value_cut_at_a_space_is_put_together_where_that_composes(words: str, said: str) -> None:
    with pytest.raises(MeantWord) as refused:
        parse_arguments(words.split())
    assert str(tried_meant(refused.value)).startswith(said)
