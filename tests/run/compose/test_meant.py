import pytest
from lightning.pytorch.strategies import StrategyRegistry

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.foreign.equivalents import OF_A_BASE
from lmtrain.run.compose.meant import MeantWord, is_known_head, unknown_beside
from lmtrain.run.compose.unknown_words import leaf_keys
from lmtrain.run.planning.tried_answers import tried_refusal


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["lr=1e-3"], "optimizer.lr=1e-3."),
        (["epochs=3"], "budget.epochs=3."),
        (["--model", "gpt2_124m"], "model=gpt2_124m."),
        (["--precision", "bf16-true"], "precision=bf16_true."),  # litgpt, Lightning
        (["--precision=32"], "precision=fp32."),
        (["--optimizer", "AdamW"], "optimizer=adamw."),
        (["--optim", "rmsprop"], "optimizer=rmsprop."),
        (["--schedule", "cosine"], "schedule=warmup_cosine."),
        (["--budget", "10M"], "budget.tokens=10M."),
        (["--tokenizer", "gpt2"], "tokenizer=huggingface tokenizer.name=gpt2 tokenizer.vocab_size=50257."),
        (
            ["--model", "no/such"],
            "init_from=runs/base (after `hf download no/such --local-dir base` and `lmtrain import hf base "
            "runs/base`).",
        ),
        (
            ["--depth=12", "--device-batch-size=16", "--whatever=3", "foo=4"],  # nanochat
            "model=nano model.depth=12 batch.tokens_per_step=4096 batch.micro_batch_sequences=16.\n"
            "  --device-batch-size=16: batch.tokens_per_step=4096 batch.micro_batch_sequences=16 (16 sequences x 256 "
            "tokens)\n  --whatever: there is no such flag\n  foo=4: there is no key foo",
        ),
        (["--save-folder", "out/x"], "run.root=out run.name=x."),
        (
            ["trainer.precision=bf16", "model.optim.lr=1e-3", "exp_manager.exp_dir=x"],  # NeMo
            "precision=bf16_mixed optimizer.lr=1e-3 run.name=x.",
        ),
        (["--data.path", "no_such"], "source=files 'source.paths=[no_such]'."),  # litgpt
        (["--data.split", "tail"], "data.split=tail."),
        (
            ["hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=4", "hydra/sweeper/sampler=random"],
            "sweep.trials=2 sweep.parallel=4 sweep.sampler=random.\n  hydra.sweeper.n_trials=2: sweep.trials=2",
        ),
        (["--resume"], "resume=must (or nothing: the same command again goes on with its run)."),
        (["--resume", "runs/a"], "resume=runs/a."),
        (["resume=True"], "resume=must (or nothing: the same command again goes on with its run)."),
        (["resume=no"], "resume=never (a new run in place of the one there)."),
        (
            ["--init_from=resume", "lr=1e-3"],  # nanoGPT
            "resume=must optimizer.lr=1e-3.\n  --init_from=resume: resume=must (or nothing: the same command again "
            "goes on with its run)",
        ),
        (["init_from=scratch", "lr=1e-3"], "optimizer.lr=1e-3."),
        (
            ["--init_from=gpt2-xl"],
            "init_from=runs/base (after `hf download gpt2-xl --local-dir base` and `lmtrain import hf base runs/base`; "
            "model=gpt2_1558m starts from random weights).",
        ),
        (["cluster=h100_8x", "gpus=16", "batch.tokens_per_step=8192"], "cluster.num_nodes=2."),
        (
            ["cluster=h100_8x", "--num_nodes", "2", "--tp", "4"],
            "cluster.num_nodes=2 strategy=tensor strategy.tensor_size=4.",
        ),
        (["debug=tiny", "train.txt"], "source=files 'source.paths=[train.txt]'."),
        (["--device=cpu", "a.txt", "b.jsonl"], "trainer.accelerator=cpu source=files 'source.paths=[a.txt,b.jsonl]'."),
        (["--data", "my.txt"], "source=files 'source.paths=[my.txt]'."),
        (["budget=flops"], "budget.flops=1e15 (an example)."),
        (
            ["budget=usd"],
            "budget.usd=10 cluster.usd_per_gpu_hour=2 (an example, of 2 dollars for an hour of one device).",
        ),
        (["gpu=h100"], "cluster=h100_8x (a node of eight; of one: cluster.devices_per_node=1 beside it)."),
        (["eval_split=0.1"], "data.folder.validation_fraction=0.1."),
        (["early_stopping=3"], "'callbacks=[default,early_stopping]' callbacks.early_stopping.patience=3."),
        (["--fsdp", "full_shard auto_wrap"], "strategy=fsdp."),
        (["max_iters=100", "eval_interval=10"], "budget.steps=100 callbacks.validation.every_steps=10."),
        (["max_steps=100"], "budget.steps=100."),
        (
            ["--device-batch-size=16", "--total-batch-size=524288"],  # nanochat's counts tokens
            "batch.tokens_per_step=524288 batch.micro_batch_sequences=16.",
        ),
        (["--strategy", "deepspeed_stage_2"], "strategy=fsdp (its shards are those of ZeRO's stage 3)."),
        (["optim=adamw_torch_4bit"], "optimizer=adamw_8bit (its moments have 8 bits)."),
        (["--optim", "rmsprop_bnb_8bit"], "optimizer=rmsprop."),
        (["batch_size=32"], "batch.tokens_per_step=8192 (32 sequences of batch.context_tokens=256)."),
        (
            ["batch.context_tokens=64", "batch_size=2"],
            "batch.tokens_per_step=128 (2 sequences of batch.context_tokens=64).",
        ),
        (["batch_size=auto"], "batch.micro_batch_sequences=auto (the largest that fits the device's memory)."),
        (
            ["gradient_accumulation_steps=4"],
            "batch.micro_batch_sequences=2 (4 passes make a step's 8 sequences; the step's batch stays as it is).",
        ),
        (
            ["gradient_accumulation_steps=3", "batch.tokens_per_step=16K"],
            "batch.tokens_per_step=16128 batch.micro_batch_sequences=21 (3 passes make a step's 63 sequences).",
        ),
        (
            ["batch_size=12", "gradient_accumulation_steps=40", "block_size=1024"],  # nanoGPT
            "batch.tokens_per_step=491520 batch.micro_batch_sequences=12 batch.context_tokens=1024.\n  batch_size=12: "
            "batch.tokens_per_step=491520 batch.micro_batch_sequences=12 (12 sequences x 40 passes x 1024 tokens)",
        ),
        (
            ["--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "4", "trainer.devices=2"],
            "batch.tokens_per_step=16384 batch.micro_batch_sequences=8.",  # 8 x 4 passes x 2 devices x 256 tokens
        ),
        (["training.local_batch_size=4"], "batch.micro_batch_sequences=4 (of one pass of one device)."),
        (
            ["--learning_rate=2e-4", "--num_train_epochs=3", "--bf16", "--output_dir", "out/first", "--do_train"],
            "optimizer.lr=2e-4 budget.epochs=3 precision=bf16_mixed run.root=out run.name=first.\n"
            "  --do_train: `lmtrain train` trains and validates; leave it out",
        ),
        (["dtype=bfloat16"], "precision=bf16_mixed."),
        (["lr_scheduler_type=cosine"], "schedule=warmup_cosine."),
        (["optim=adamw_torch"], "optimizer=adamw."),
        (["gradient_checkpointing=True"], "recompute=every_block."),
        (["report_to=none"], "logger=none."),
        (["wandb_project=mine"], "logger=wandb logger.project=mine."),
        (["adapter=qlora"], "adapter=lora init_from=runs/base (weights are not trained in 4 bits; " + OF_A_BASE + ")."),
        (
            ["adapter.r=8", "lora_alpha=16", "use_rslora=true"],
            "adapter=lora adapter.rank=8 adapter.alpha=16 adapter.rank_stabilized=true init_from=runs/base."
            f"\n  {OF_A_BASE}",
        ),
        (["model.n_layer=6"], "model.num_layers=6."),
        (["training.seq_len=2048"], "batch.context_tokens=2048."),
        (["callbacks.checkpoint.save_steps=50"], "callbacks.checkpoint.every_steps=50."),
        (["dataset=no/such"], "source=hf_dataset source.name=no/such."),
        (["train_file=my notes.txt"], "source=files 'source.paths=[my notes.txt]'."),
        (["model_name_or_path=gpt2_124m"], "model=gpt2_124m."),
        (
            ["base_model=no/Llama-2-7b-hf"],
            "init_from=runs/base (after `hf download no/Llama-2-7b-hf --local-dir base` and `lmtrain import hf base "
            "runs/base`; model=llama_2_7b starts from random weights).",
        ),
        (
            ["tokenizer_name=no/such"],
            "tokenizer=huggingface tokenizer.name=no/such tokenizer.vocab_size=32000 (a wrong tokenizer.vocab_size is "
            "answered with the right one).",
        ),
        (["tokenizer_type=tiktoken"], "tokenizer=huggingface tokenizer.name=gpt2 tokenizer.vocab_size=50257."),
        (["n_embd=384"], "model.width=384 model.feed_forward_width=1536."),
        (["n_embd=384", "d_ff=1000"], "model.width=384 model.feed_forward_width=1000."),
        (["model=llama_3_8b", "dim=2048"], "model.width=2048 model.feed_forward_width=7168."),
        (["model=gpt2_355m", "n_embd=384"], "model.width=384."),
        (["resume_from_checkpoint=true"], "resume=must."),
        (["device=cuda"], "trainer.accelerator=gpu (auto, the default, takes one where there is one)."),
        (
            ["--training.local_batch_size", "4", "--training.seq_len", "4096"],  # torchtitan
            "batch.micro_batch_sequences=4 batch.context_tokens=4096 batch.tokens_per_step=16384.\n"
            "  batch.tokens_per_step=16384: whole passes of every device",
        ),
        (
            ["--tensor_parallel_degree=2", "--nproc_per_node=4", "--model.name", "llama3", "--model.flavor", "8B"],
            "strategy=tensor strategy.tensor_size=2 trainer.devices=4 model=llama_3_8b.",
        ),
        (
            ["trainer.max_steps=9", "trainer.val_check_interval=5", "model.micro_batch_size=4", "trainer.foo=3"],
            "budget.steps=9 callbacks.validation.every_steps=5 batch.micro_batch_sequences=4.\n"
            "  trainer.foo=3: there is no key trainer.foo; trainer has devices, num_nodes, accelerator, cpu_threads, "
            "deterministic, detect_anomaly",
        ),
        (
            ["--min-lr", "1e-5", "--lr", "1e-4", "--rampup-batch-size", "16", "16", "9", "--train-samples", "9"],
            "schedule.final_fraction=0.1 optimizer.lr=1e-4 budget.tokens=2304.",
        ),
        (
            ["--train_module.rank_microbatch_size=1024"],
            "batch.micro_batch_sequences=4 (rank_microbatch_size counts tokens).",
        ),
        (["--max_duration.value=3", "--max_duration.unit=epochs"], "budget.epochs=3."),  # OLMo-core
        (
            ["bf16=true", "tf32=true"],
            "precision=bf16_mixed.\n  tf32=true: precision=tf32, but precision=bf16_mixed stands",
        ),
        (["eval.max_iters=10"], "callbacks.validation.max_tokens=20480 (10 x 2048 tokens)."),
        (["--run", "d12"], "run.name=d12."),
        (["--packing"], "packing=best_fit."),
        (["data.batch_size=8"], "batch.tokens_per_step=2048 (8 sequences of batch.context_tokens=256)."),
        (["budget.minutes=2"], "budget.hours=2min."),
        (["trainer.max_time=00:03:45:00"], "budget.hours=225min."),
        (
            ["--lora_target_modules", "q_proj", "o_proj"],
            "adapter=lora 'adapter.targets=[qkv,output]' init_from=runs/base.",
        ),
        (
            ["num_attention_heads=6"],
            "model.num_heads=6 model.width=384 model.feed_forward_width=1536 (64 numbers a head).",
        ),
        (
            ["early_stopping_patience=3", "hub_model_id=a/b"],
            "'callbacks=[default,early_stopping,push]' callbacks.early_stopping.patience=3 "
            "callbacks.push.repository=a/b.",
        ),
        (["--lr", "1e-3"], "optimizer.lr=1e-3."),
        (["--learning-rate", "1e-3"], "optimizer.lr=1e-3."),
        (["--lr"], "optimizer.lr=VALUE."),
        (["--optimizer.lr", "1e-3"], "optimizer.lr=1e-3."),
        (["optimizer.lr", "=", "1e-3"], "optimizer.lr=1e-3."),
        (["optimizer.lr", "=1e-3"], "optimizer.lr=1e-3."),
        (["optimizer", "lr=1e-3"], "optimizer.lr=1e-3."),
        (["run", "name=notes"], "run.name=notes."),
        (["seed=1", "model", "gpt2_124m"], "model=gpt2_124m."),
        (["optimizer.lr=", "1e-3"], "optimizer.lr=1e-3."),
        (["budget.tokens=20", "M"], "budget.tokens=20M."),
        (["run.name=my", "long", "run", "seed=1"], "run.name=my_long_run."),
        (["source.paths=my", "notes.txt"], "'source.paths=my notes.txt'."),
        (["run.root=my", "runs"], "'run.root=my runs'."),
        (["source=files", "/data/py", "/data/a.txt"], "'source.paths=[/data/py,/data/a.txt]'."),
        (["[a b"], "source=files 'source.paths=[a, b]'."),
        (["seed=1", "-m", "[my/a,", "my/b]"], "source=files 'source.paths=[my/a, my/b]'."),
    ],
)
def test_a_word_of_other_programs_gets_the_word_that_was_meant(words: list[str], meant: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_arguments(words)
    foreign = refused.value.foreign if isinstance(refused.value, MeantWord) else None
    said = tried_refusal(foreign) if foreign else refused.value
    first, *lines = str(said).partition("; write ")[2].split("\n")
    wanted, *told = meant.split("\n")
    assert first.removesuffix(f" ({OF_A_BASE}).").removesuffix(".") == wanted.removesuffix(".")
    assert {*told} <= {*lines}


@pytest.mark.parametrize(("key", "group"), [("optim", "optimizer"), ("report_to", "logger")])
def test_an_option_of_nobody_is_unknown_and_ours_are_listed(key: str, group: str) -> None:
    refusal = rf"^--{key} galore_adamw: {group}=galore_adamw: there is no such option; {group} has .*, .*, .*\.$"
    with pytest.raises(ConfigurationError, match=refusal):
        parse_arguments([f"--{key}", "galore_adamw"])


def test_every_strategy_that_lightning_registers_is_answered_by_one_of_its_kind() -> None:
    nearest = {
        "ddp": "strategy=ddp",
        "fsdp": "strategy=fsdp",
        "deepspeed": "strategy=fsdp",
        "single": "strategy=single",
    }
    for name in StrategyRegistry.available_strategies():
        with pytest.raises(ConfigurationError) as refused:
            parse_arguments([f"trainer.strategy={name}"])
        is_of_tpus = "xla" in name or "tpu" in name
        meant = "it trains on CPUs and CUDA GPUs; leave it out" if is_of_tpus else nearest[name.partition("_")[0]]
        assert meant in str(refused.value), name


def test_a_setting_of_other_programs_without_an_equivalent_is_told_why() -> None:
    with pytest.raises(ConfigurationError, match=r"^dropout=0\.1: a model has no dropout here .*; leave it out\.$"):
        parse_arguments(["dropout=0.1"])
    with pytest.raises(ConfigurationError, match=r"direction=minimize: a search seeks lower .*; leave it out\.$"):
        parse_arguments(["hydra.sweeper.direction=minimize"])
    with pytest.raises(ConfigurationError, match=r"^data\.foo=x: there is no key data\.foo; data has .*folder\.$"):
        parse_arguments(["--data.foo", "x"])
    with pytest.raises(ConfigurationError, match=r"^logger=tb2: there is no such .*\.\ndropout=1: .*leave it out\.$"):
        parse_arguments(["--logger", "tb2", "dropout=1"])
    with pytest.raises(ConfigurationError, match=r"^gpus=8: a node of cluster=h100_8x has 8 devices; leave it out\.$"):
        parse_arguments(["cluster=h100_8x", "gpus=8"])
    with pytest.raises(ConfigurationError, match=r"^gpu=0: .* CUDA_VISIBLE_DEVICES=1 before .*; leave it out\.$"):
        parse_arguments(["gpu=0"])
    with pytest.raises(ConfigurationError, match="by --config-dir FOLDER experiment=NAME"):
        parse_arguments(["config/train_gpt2.py"])


@pytest.mark.parametrize(
    "words", [["notes"], ["seed=1", "-m", "notes"], ["optimizer", "seed=1"], ["optimizer", "adamv"]]
)
def test_a_word_without_a_value_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="is not KEY=VALUE or GROUP=OPTION"):
        parse_arguments(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--cfg", "job", "optimizer.lr=1e-3"],
        ["--foo", "3"],  # an unknown flag is refused by the parser of flags
        ["~callbacks.validation", "-m", "seed=1,2"],
        ["+model.num_kv_heads=2", "optimizer.lr="],
    ],
)
def test_what_may_be_meant_as_typed_is_kept(words: list[str]) -> None:
    assert set(words) <= {*parse_arguments(words).hydra}


def test_words_known_nowhere_are_told_but_for_those_answered() -> None:
    words = ["--foo", "3", "bar.x=1", "lr=2", "--lr", "2", "-m", "--resolve", "seed=1", "hydra.mode=RUN", "~spikes"]
    told = ["--foo: there is no such flag", "bar.x=1: there is no key bar.x"]
    assert unknown_beside(words, ["lr=2", "--lr 2"]) == told
    assert unknown_beside([*words, "--config-dir", "mine"], []) == []


def test_every_key_of_a_config_and_of_a_pipeline_is_known() -> None:
    assert not [key for key in leaf_keys(compose_config([])) if not is_known_head(key)]
    assert is_known_head("stages.base.words")
    assert not is_known_head("exp_manager.create_wandb_logger")
