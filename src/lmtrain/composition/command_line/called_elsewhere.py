"""Names of settings in other programs: transformers, TRL, nanoGPT, torchtitan, litgpt, axolotl, Lightning."""

from collections.abc import Mapping
from typing import Final

# Our key: the same setting's names elsewhere, its value as it is.
CALLED_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "optimizer.lr": ("lr", "learning_rate", "max_lr", "peak_lr", "base_lr"),
    "optimizer.weight_decay": ("weight_decay", "wd"),
    "optimizer.beta1": ("beta1", "adam_beta1", "beta_1"),
    "optimizer.beta2": ("beta2", "adam_beta2", "beta_2"),
    "optimizer.eps": ("eps", "epsilon", "adam_epsilon", "adam_eps"),
    "budget.epochs": ("epochs", "epoch", "num_epochs", "max_epochs", "num_train_epochs"),
    "budget.steps": ("steps", "max_steps", "num_steps", "iterations", "max_iters", "num_iterations", "train_steps"),
    "budget.tokens": ("tokens", "max_tokens", "num_tokens"),
    "batch.context_tokens": (
        *("context_length", "seq_len", "seq_length", "sequence_length", "sequence_len", "block_size", "max_length"),
        *("max_seq_length", "max_seq_len", "model_max_length", "context_size", "n_ctx", "n_positions", "cutoff_len"),
    ),
    "gradient_clip_norm": (
        *("grad_clip", "gradient_clip_val", "max_grad_norm", "max_norm", "gradient_clipping", "clip_grad_norm"),
        "gradient_clip",
    ),
    "schedule.warmup_steps": ("warmup_steps", "num_warmup_steps", "warmup_iters", "lr_warmup_steps", "warmup"),
    "schedule.warmup_fraction": ("warmup_ratio", "warmup_fraction"),
    "run.log_every_steps": (
        *("logging_steps", "log_interval", "log_every", "log_every_n_steps", "log_freq", "log_every_steps"),
        "metrics.log_freq",
    ),
    "callbacks.checkpoint.every_steps": (
        *("save_steps", "save_interval", "save_every", "save_freq", "checkpoint_interval", "checkpoint.interval"),
        *("ckpt_interval", "checkpoint_every"),
    ),
    "callbacks.checkpoint.keep_last": ("save_total_limit", "keep_last", "checkpoint.keep_latest_k"),
    "callbacks.validation.every_steps": (
        *("eval_steps", "eval_interval", "eval_every", "eval_freq", "validation.freq", "eval.interval"),
        "val_interval",
    ),
    "data.num_workers": ("num_workers", "dataloader_num_workers"),
    "data.folder.validation_fraction": ("val_set_size", "val_fraction", "validation_fraction", "val_split_fraction"),
    "trainer.devices": ("devices", "gpus", "num_gpus", "n_gpus", "ngpu", "nproc_per_node", "num_devices", "world_size"),
    "trainer.num_nodes": ("num_nodes", "nnodes"),
    "run.name": ("name", "run_name", "wandb_run_name", "experiment_name", "exp_name"),
    "seed": ("random_seed", "data_seed", "train_seed"),
    "model.num_layers": ("num_layers", "n_layer", "n_layers", "num_hidden_layers", "layers"),
    "model.num_heads": ("num_heads", "n_head", "n_heads", "num_attention_heads"),
    "model.width": ("hidden_size", "n_embd", "d_model", "embed_dim", "embedding_dim", "dim"),
    "model.feed_forward_width": ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "tokenizer.vocab_size": ("vocab_size",),
    "sweep.trials": ("hydra.sweeper.n_trials", "hydra.sweeper.max_trials", "n_trials", "num_trials"),
    "sweep.parallel": ("hydra.sweeper.n_jobs", "hydra.launcher.n_jobs", "n_jobs"),
    "sweep.seed": ("hydra.sweeper.sampler.seed",),
}
LORA: Final = "adapter=lora"
WANDB: Final = "logger=wandb"
TENSOR: Final = "strategy=tensor"
STOPPING: Final = "callbacks=[default,early_stopping]"
PUSH: Final = "callbacks=[default,push]"
# Words here, with {} for the value: its names elsewhere.
CALLED_WORDS: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    ("model.num_kv_heads={}",): ("num_key_value_heads", "n_kv_heads", "n_kv_head", "num_kv_heads", "n_query_groups"),
    ("model=gpt2_124m", "model.biases={}"): ("bias",),
    ("model=nano", "model.depth={}"): ("depth",),  # nanochat
    (LORA, "adapter.rank={}"): ("lora_r", "lora_rank"),
    (LORA, "adapter.alpha={}"): ("lora_alpha",),
    (LORA, "adapter.dropout={}"): ("lora_dropout",),
    (LORA, "adapter.targets={}"): ("lora_target_modules", "target_modules"),
    (WANDB, "logger.project={}"): ("wandb_project",),
    (WANDB, "logger.entity={}"): ("wandb_entity",),
    (STOPPING, "callbacks.early_stopping.patience={}"): ("early_stopping_patience", "patience"),
    (PUSH, "callbacks.push.repository={}"): ("hub_model_id", "hub_repo_id"),
    (TENSOR, "strategy.tensor_size={}"): ("tensor_parallel_degree", "tensor_parallel_size", "tp_size", "tp"),
    ("source=files", "source.validation_paths=[{}]"): ("validation_file", "val_file", "valid_file", "eval_file"),
    ("schedule.final_fraction=FRACTION_OF_THE_PEAK",): ("min_lr", "lr_min", "min_learning_rate"),
    ("callbacks.validation.max_tokens=TOKENS",): ("eval_iters", "eval_batches", "limit_val_batches"),
    ("source=files", "source.text_column={}"): ("text_column", "dataset_text_field", "text_key", "text_field"),
}
# Names elsewhere, with words and a group here: the option of each value besides its own and CALLED_OPTIONS; "" is that
# of any other.
CALLED_CHOICES: Final[Mapping[tuple[str, ...], tuple[tuple[str, ...], Mapping[str, str]]]] = {
    ("bf16",): (("precision",), {"true": "bf16_mixed", "false": "fp32", "auto": "auto"}),
    ("fp16", "amp"): (("precision",), {"true": "fp16_mixed", "false": "fp32"}),
    ("tf32",): (("precision",), {"true": "tf32", "false": "fp32"}),
    ("dtype", "torch_dtype", "mixed_precision", "trainer.precision"): (("precision",), {}),
    ("gradient_checkpointing", "activation_checkpointing", "grad_checkpointing", "activation_checkpoint.mode"): (
        ("recompute",),
        {"true": "every_block", "full": "every_block", "selective": "selective", "false": "none", "none": "none"},
    ),
    ("torch_compile", "training.compile", "compile.enable", "use_compile"): (
        ("compile",),
        {"true": "auto", "false": "none"},
    ),
    ("flash_attention", "flash_attn", "use_flash_attention", "use_flash_attn", "attn_implementation"): (
        ("attention",),
        {"true": "flash", "false": "sdpa", "flash_attention_2": "flash", "sdpa": "sdpa", "eager": "eager"},
    ),
    ("report_to", "log_with", "logger_name"): (
        ("logger",),
        {"all": "wandb", "true": "wandb", "false": "none"},
    ),
    ("wandb_log", "use_wandb", "wandb"): (("logger",), {"true": "wandb", "false": "mlflow"}),
    ("optim", "optimizer.name", "optimizer.type", "optimizer_name", "optim.name", "model.optim.name"): (
        ("optimizer",),
        {},
    ),
    (
        "lr_scheduler_type",
        "lr_scheduler",
        "scheduler",
        "lr_schedule",
        "lr_scheduler.decay_type",
        "model.optim.sched.name",
    ): (
        ("schedule",),
        {},
    ),
    ("hydra/sweeper/sampler", "hydra.sweeper.sampler"): (
        ("sweep.sampler",),
        {
            "": "tpe",
            **dict.fromkeys(("cmaes", "optuna.samplers.cmaessampler"), "cmaes"),
            **dict.fromkeys(("random", "optuna.samplers.randomsampler"), "random"),
            **dict.fromkeys(("grid", "optuna.samplers.gridsampler"), "grid"),
        },
    ),
    ("hydra/launcher",): (("sweep.launcher",), {"": "local", "submitit_slurm": "slurm"}),
    ("decay_lr",): (("schedule",), {"true": "warmup_cosine", "false": "constant"}),
    ("fsdp", "deepspeed", "zero_stage"): (("strategy",), {"": "fsdp", "false": "auto"}),
    ("ddp",): (("strategy",), {"": "ddp", "false": "auto"}),
    ("trainer.strategy",): (("strategy",), {}),
    ("sample_packing",): (("packing",), {"true": "best_fit", "false": "document"}),
    ("use_peft", "peft", "lora", "use_lora"): (("adapter",), {"true": "lora", "false": "none"}),
    ("accelerator", "device"): (("trainer.accelerator",), {"": "gpu", "cpu": "cpu", "auto": "auto", "mps": "cpu"}),
    ("resume_from_checkpoint", "resume_from"): (
        ("resume",),
        {"": "{}", "true": "must", "false": "never", "none": "never"},
    ),
    ("overwrite_output_dir",): (("resume",), {"true": "never", "false": "auto"}),
    ("load_best_model_at_end",): (("callbacks.checkpoint.keep_best",), {"": "{}"}),
    ("push_to_hub",): ((PUSH, "callbacks.push.repository"), {"": "OWNER/NAME"}),
}
EXPERTS: Final = "experts stay whole on every device: strategy=fsdp or hsdp (docs/decisions/0018)"
SEQUENCE: Final = "a sequence is cut within tensor groups alone: strategy=tensor or fsdp_tensor (docs/decisions/0019)"
# Nothing here has their effect, or everything has.
NO_SETTING: Final[Mapping[str, tuple[str, ...]]] = {
    "a model has no dropout here (adapter.dropout is a LoRA's)": ("dropout", "model.dropout", "hidden_dropout"),
    "the loss has no label smoothing": ("label_smoothing", "label_smoothing_factor"),
    "weights are not trained in 4 or 8 bits": ("load_in_4bit", "load_in_8bit"),
    "a search seeks lower values of sweep.metric": ("hydra.sweeper.direction",),
    "a search's folder keeps its trials, and the same command again goes on with it": (
        *("hydra.sweeper.storage", "hydra.sweeper.study_name", "hydra.sweeper.load_if_exists"),
    ),
    "a space is typed as KEY=interval(LOW,HIGH), or an option's hydra.sweeper.params": ("hydra.sweeper.search_space",),
    "a schedule ends with the budget": ("lr_decay_iters", "decay_steps", "lr_decay_steps"),
    "`lmtrain train` trains and validates": ("do_train", "do_eval", "eval_strategy", "evaluation_strategy"),
    "`lmtrain evaluate runs/NAME` scores a run": ("eval_only",),
    "checkpoints are saved by the clock, or every callbacks.checkpoint.every_steps": (
        *("save_strategy", "always_save_checkpoint"),
        "save_checkpoint",
    ),
    "steps are logged every run.log_every_steps": ("logging_strategy",),
    "the strategy chooses its backend": ("backend", "ddp_backend"),
    "strategy=ddp, fsdp or hsdp divides the devices": ("data_parallel_shard_degree", "data_parallel_replicate_degree"),
    EXPERTS: ("expert_parallel_degree", "expert_parallel_size", "expert_model_parallel_size"),
    SEQUENCE: ("context_parallel_degree", "context_parallel_size", "sequence_parallel_size"),
    "the tokenizer is the model's or the data's own": ("add_eos_token", "add_bos_token"),
}
DATA: Final = (
    *("dataset", "dataset_name", "dataset_path", "data_path", "data_dir", "train_file", "train_files", "train_data"),
    *("datasets", "training.dataset", "data_files", "train_path", "input_file"),
    *("data.path", "data.train_data_path", "data.json_path", "data.data_path", "data_prefix"),
    "model.data.data_prefix",
)
MODELS: Final = (
    *("model_name_or_path", "base_model", "model_name", "pretrained_model_name_or_path", "checkpoint_dir"),
    *("initial_checkpoint_dir", "model.name", "model.flavor", "model_path", "model_type"),
)
TOKENIZERS: Final = ("tokenizer_name", "tokenizer_name_or_path", "tokenizer_path", "tokenizer_dir", "tokenizer_type")
# Encodings of tiktoken, and itself, by a name on the hub.
TIKTOKEN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tiktoken", "gpt2_bpe", "r50k_base"), "gpt2"),
    "cl100k_base": "Xenova/gpt-4",
    "o200k_base": "Xenova/gpt-4o",
}
FOLDERS: Final = (
    "output_dir",
    "out_dir",
    "save_dir",
    "default_root_dir",
    "checkpoint.folder",
    "job.dump_folder",
    "save_folder",
    "exp_dir",
    "log_dir",
    "logdir",
    "work_dir",
    "results_dir",
    "hydra.run.dir",
)
# Sizes of a batch in sequences: of a whole step, of one pass of a device, of all passes of a device.
OF_A_STEP: Final = ("batch_size", "train_batch_size", "global_batch_size", "bs")
IN_TOKENS: Final = ("total_batch_size",)  # of a step, in nanochat
OF_A_PASS: Final = ("micro_batch_size", "local_batch_size", "micro_batch", "mbs")
OF_A_DEVICE: Final = ("per_device_train_batch_size", "per_device_batch_size", "device_batch_size")
PASSES: Final = (
    *("gradient_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation", "grad_accum_steps"),
    *("grad_accum", "accumulation_steps", "grad_accumulation_steps"),
)
ZERO: Final = "its shards are those of ZeRO's stage 3"
ON_HOST: Final = "optimizer_cpu_offload=true keeps optimizer state in host memory"
# An option's name elsewhere, too unlike ours for a comparison of letters: by group.
CALLED_OPTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "precision": {
        "mixed": ("bf16_mixed", "fp16_mixed"),
        **dict.fromkeys(("bfloat16", "bf16", "torch_bfloat16"), ("bf16_mixed", "bf16_true")),
        **dict.fromkeys(("float16", "fp16", "half", "16", "16_mixed", "torch_float16"), ("fp16_mixed",)),
        **dict.fromkeys(("16_true", "fp16_true", "float16_true"), ("bf16_true", "fp16_mixed")),
        **dict.fromkeys(("32", "32_true", "fp32_true", "float32", "float", "single", "full", "no"), ("fp32",)),
        "torch_float32": ("fp32",),
        **dict.fromkeys(("tensorfloat32", "tf32_true", "tf32_mixed"), ("tf32",)),
        **dict.fromkeys(("float8", "transformer_engine", "fp8_mixed", "fp8_true"), ("fp8",)),
    },
    "schedule": {
        **dict.fromkeys(("wsd", "warmup_stable_decay", "constant_with_warmup", "trapezoidal"), ("trapezoid",)),
        **dict.fromkeys(("cosine", "cosine_with_restarts", "cosine_annealing"), ("warmup_cosine",)),
        "none": ("constant",),
        "decay": ("cooldown",),
    },
    "optimizer": {
        **dict.fromkeys(("adam", "fused_adam", "paged_adamw", "paged_adamw_32bit"), ("adamw",)),
        **dict.fromkeys(("adamw_bnb_8bit", "adamw_torch_8bit", "adamw_torch_4bit", "adam8bit"), ("adamw_8bit",)),
        "paged_adamw_8bit": ("adamw_8bit",),
        **dict.fromkeys(("paged_lion", "paged_lion_8bit", "paged_lion_32bit"), ("lion",)),
    },
    "strategy": {
        **dict.fromkeys(("zero", "zero1", "zero2", "zero3", "deepspeed", "full_shard", "shard_grad_op"), ("fsdp",)),
        **dict.fromkeys(("hybrid_shard", "hybrid_sharding"), ("hsdp",)),
        **dict.fromkeys(("model_parallel", "megatron"), ("fsdp_tensor",)),
        "none": ("single",),
        "tp": ("tensor",),
        "pp": ("pipeline",),
        "dp": ("ddp",),
        "data_parallel": ("ddp",),
    },
    "attention": {
        **dict.fromkeys(("flash_attention_2", "flash_attention", "flash_attn", "flash2", "fa2"), ("flash",)),
        "math": ("eager",),
        "xformers": ("sdpa",),
    },
    "recompute": dict.fromkeys(("full", "gradient_checkpointing", "true", "on", "yes"), ("every_block",)),
    "compile": dict.fromkeys(("true", "on", "yes", "default", "max_autotune", "reduce_overhead"), ("auto",)),
    "adapter": {"peft": ("lora",)},
    "packing": {"true": ("best_fit",), "false": ("document",)},
    "tokenizer": {
        **dict.fromkeys(("char", "character", "byte", "bytes"), ("byte_level",)),
        **dict.fromkeys(("hf", "auto", "pretrained"), ("huggingface",)),
    },
    "source": dict.fromkeys(("text", "folder", "json", "jsonl", "csv", "parquet"), ("files",)),
    "task": {
        **dict.fromkeys(("finetune", "finetuning", "instruct", "chat"), ("sft",)),
        "rl": ("grpo",),
        "ppo": ("grpo",),
    },
    "model": {
        **dict.fromkeys(("gpt2", "gpt2_small", "gpt", "nanogpt"), ("gpt2_124m",)),
        "gpt2_medium": ("gpt2_355m",),
        "gpt2_large": ("gpt2_774m",),
        "gpt2_xl": ("gpt2_1558m",),
        "llama": ("llama_tiny",),
        "nanochat": ("nano",),
    },
    "logger": {"tb": ("tensorboard",), "wb": ("wandb",)},
}
# The reason for an option in place of another program's, by the beginning or end of its name there: by group.
NEAREST: Final[Mapping[str, Mapping[str, str]]] = {
    "strategy": {"zero": ZERO, "deepspeed": ZERO, "shard_grad_op": ZERO, "offload": ON_HOST},
    "optimizer": {"paged": ON_HOST, "4bit": "its moments have 8 bits"},
}
# Options that others have and nothing here replaces by name, with the reason: by group.
NO_OPTION: Final[Mapping[str, Mapping[str, str]]] = {
    "precision": dict.fromkeys(
        ("64", "64_true", "fp64", "float64", "double"), "nothing is computed in 64 bits; the widest is precision=fp32"
    ),
    "strategy": {
        **dict.fromkeys(("tpu", "single_tpu", "xla", "xla_debug", "single_xla"), "it trains on CPUs and CUDA GPUs"),
        **dict.fromkeys(("expert", "experts", "expert_parallel", "ep"), EXPERTS),
        **dict.fromkeys(("context", "context_parallel", "cp", "ring", "ulysses", "sequence_parallel"), SEQUENCE),
    },
}
TUNED: Final = (
    "`lmtrain train init_from=RUN task=sft`, and adapter=lora for a few weights alone; RUN may be an imported folder"
)
# Verbs of other programs, with the command here.
CALLED_VERBS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("finetune", "fine-tune", "fine_tune", "sft", "lora"), TUNED),
    "pretrain": "`lmtrain train`",
    "resume": "the same `lmtrain train` command again, which goes on with its run",
}
