"""Settings and options of other programs, with the words here.

The usual words of Hugging Face's Trainer and TRL, nanoGPT, Lightning, litgpt and torchtitan; `{}` stands for the value
as typed.
"""

from collections.abc import Mapping
from typing import Final

# What to type here -> the names of that setting in other programs.
SETTINGS: Final[Mapping[str, str]] = {
    "optimizer.lr={} (muon's rate by default; for a rate of AdamW also optimizer=adamw)": (
        "lr learning_rate max_lr peak_lr base_lr"
    ),
    "optimizer.weight_decay={}": "weight_decay wd",
    "optimizer.beta1={}": "beta1 adam_beta1",
    "optimizer={}": "optim optimizer_name",
    "schedule={}": "lr_scheduler_type lr_scheduler lr_schedule scheduler",
    "schedule.warmup_steps={}": "warmup_steps num_warmup_steps warmup_iters lr_warmup_steps warmup",
    "schedule.warmup_fraction={}": "warmup_ratio warmup_fraction",
    "schedule.final_fraction={}": "final_lr_frac min_lr_factor min_lr_ratio min_lr_rate",
    "gradient_clip_norm={}": "grad_clip gradient_clip_val max_grad_norm max_norm gradient_clipping clip_grad_norm",
    "budget.steps={}": "steps max_steps num_steps max_iters iterations num_iterations train_steps train_iters",
    "budget.epochs={}": "epochs num_epochs max_epochs num_train_epochs",
    "budget.tokens={}": "tokens max_tokens num_tokens total_tokens train_tokens",
    "budget.hours={}": "hours max_hours max_time",
    "batch.micro_batch_sequences={} (of one forward pass; a step is batch.tokens_per_step)": (
        "batch_size micro_batch_size per_device_train_batch_size per_device_batch_size local_batch_size "
        "device_batch_size train_batch_size micro_batch batch"
    ),
    "batch.tokens_per_step (sequences of a step x batch.context_tokens)": (
        "global_batch_size effective_batch_size gradient_accumulation_steps accumulate_grad_batches "
        "gradient_accumulation grad_accum_steps grad_accum"
    ),
    "batch.tokens_per_step={}": "total_batch_size tokens_per_batch tokens_per_step",
    "batch.context_tokens={}": (
        "block_size seq_len seq_length sequence_length max_seq_len max_seq_length max_length context_length "
        "model_max_length n_ctx context_size n_positions max_position_embeddings cutoff_len"
    ),
    "seed={}": "random_seed data_seed",
    "run.name={}": "name run_name wandb_run_name experiment_name exp_name wandb_name",
    "run.root={}": "output_dir out_dir save_dir default_root_dir dump_folder save_folder log_dir logging_dir",
    "run.log_every_steps={}": "logging_steps log_interval log_every_n_steps log_freq log_every",
    "callbacks.checkpoint.every_steps={}": "save_steps save_interval save_every checkpoint_interval",
    "callbacks.checkpoint.keep_last={}": "save_total_limit keep_last save_top_k keep_latest_k",
    "callbacks.validation.every_steps={}": "eval_steps eval_interval eval_every eval_freq val_check_interval",
    "callbacks=[default,push] callbacks.push.repository={}": "hub_model_id",
    "trainer.devices={}": "devices ngpu n_gpu num_gpus gpus nproc_per_node gpus_per_node",
    "trainer.num_nodes={}": "num_nodes nnodes num_machines nodes",
    "trainer.accelerator={}": "accelerator device device_type",
    "trainer.accelerator=cpu": "use_cpu no_cuda cpu",
    "strategy={}": "fsdp_mode parallelism ddp_strategy",
    "strategy=fsdp": "fsdp deepspeed data_parallel_shard_degree",
    "strategy=tensor strategy.tensor_size={}": "tensor_parallel_degree tensor_parallel_size tp_size tp",
    "strategy=context strategy.context_size={}": "context_parallel_degree context_parallel_size cp_size cp",
    "strategy=fsdp strategy.expert_size={}": "expert_parallel_degree expert_parallel_size ep_size ep",
    "strategy=pipeline strategy.pipeline_size={}": "pipeline_parallel_degree pipeline_parallel_size pp_size pp",
    "trainer.devices=N, torchrun or srun (docs/guides/parallel.md)": (
        "node_rank master_addr master_port rdzv_backend rdzv_endpoint rdzv_id local_rank"
    ),
    "precision={}": "dtype torch_dtype mixed_precision mixed_precision_param param_dtype",
    "precision=bf16_mixed": "bf16",
    "precision=fp16_mixed": "fp16 amp",
    "precision=fp8": "fp8 float8",
    "recompute=every_block": "gradient_checkpointing activation_checkpointing activation_checkpoint grad_checkpointing",
    "compile={}": "torch_compile use_compile compile_model",
    "attention={}": "attn_implementation attention_backend",
    "attention=auto": "flash_attention flash_attn use_flash_attention",
    "logger={}": "report_to log_with logger_name",
    "logger=wandb": "wandb use_wandb wandb_log",
    "logger=wandb logger.project={}": "wandb_project",
    "logger=tensorboard": "tensorboard use_tensorboard enable_tensorboard",
    "resume={}": "resume_from_checkpoint ckpt_path resume_from checkpoint",
    "init_from={}": "init_from_path model_name_or_path pretrained_model_name_or_path base_model initial_load_path",
    "model={}": "model_name model_type flavor",
    "model.width={}": "n_embd hidden_size d_model dim embed_dim embedding_dim",
    "model.num_layers={}": "n_layer n_layers num_layers num_hidden_layers",
    "model.num_heads={}": "n_head n_heads num_heads num_attention_heads",
    "model.num_kv_heads={}": "num_key_value_heads n_kv_heads n_kv_head num_kv_heads n_query_groups",
    "model.feed_forward_width={}": "intermediate_size d_ff ffn_dim n_inner",
    "model.rope_base={}": "rope_theta rotary_base",
    "model.tie_embeddings={}": "tie_word_embeddings tie_embeddings",
    "model=nano model.depth={}": "depth",
    "tokenizer.vocab_size={}": "vocab_size vocab",
    "tokenizer=huggingface tokenizer.name={}": "tokenizer_name tokenizer_name_or_path tokenizer_path",
    "source=hf_dataset source.name={}": "dataset dataset_name dataset_path",
    "source=files source.paths=[{}]": "train_file train_files data_path data_dir data_files train_data input_file",
    "data.num_workers={}": "num_workers dataloader_num_workers",
    "adapter=lora init_from=RUN": "lora use_lora use_peft peft",
    "adapter=lora adapter.rank={} init_from=RUN": "lora_r lora_rank",
    "adapter=lora adapter.dropout={} init_from=RUN": "lora_dropout adapter.dropout",
    "to leave it out (models here have no dropout)": (
        "dropout attn_dropout resid_dropout attn_pdrop resid_pdrop embd_pdrop"
    ),
    "task=dpo objective.beta={} init_from=RUN": "beta dpo_beta",
    # settings of lmtrain 0.1
    "--ranks {} (of lmtrain parity)": "parity.ranks",
    "--steps {} (of lmtrain parity)": "parity.steps",
    "--tolerance {} (of lmtrain parity)": "parity.tolerance",
    "--seed {} (of lmtrain parity)": "parity.seed",
    "--config-dir FOLDER experiment=NAME, of FOLDER/experiment/NAME.yaml": "config config_file",
}

# By group: our option -> its names in other programs, where the letters are too unlike.
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "optimizer": {"adamw": "adam adamw_torch adamw_torch_fused fused_adam", "adamw_8bit": "adamw_bnb_8bit"},
    "schedule": {"trapezoid": "wsd warmup_stable_decay", "warmup_cosine": "cosine cosine_with_min_lr"},
    "precision": {"bf16_mixed": "bf16 bfloat16 mixed", "fp16_mixed": "fp16 float16 half 16", "fp32": "32 float32 no"},
    "strategy": {"fsdp": "zero zero2 zero3 deepspeed full_shard", "tensor": "tp", "pipeline": "pp"},
    "attention": {"flash": "flash_attention_2 flash_attn fa2", "eager": "math"},
    "model": {"gpt2_124m": "gpt2 gpt nanogpt", "llama_tiny": "llama", "nano": "nanochat", "llama_3_8b": "llama3"},
    "tokenizer": {"byte_level": "char bytes", "huggingface": "hf auto pretrained tiktoken gpt2"},
    "source": {"files": "text jsonl json csv parquet folder", "hf_dataset": "hf huggingface"},
    "task": {"sft": "finetune chat instruct", "grpo": "rl ppo"},
}

# Where no option is near.
HUB: Final[Mapping[str, str]] = {
    "model": "`lmtrain import hf FOLDER runs/base` takes weights of transformers, then init_from=runs/base",
    "tokenizer": "a tokenizer of the Hugging Face Hub is tokenizer=huggingface tokenizer.name=NAME",
    "source": "a data set of the Hugging Face Hub is source=hf_dataset source.name=OWNER/NAME",
}


def inverted(table: Mapping[str, str]) -> dict[str, str]:
    """Return {their name: our words} of a table {our words: their names}."""
    return {name: ours for ours, names in table.items() for name in names.split()}
