"""How lmtrain is configured for the task: a model of one of the peers' architectures, AdamW, and nothing else."""

import time
from pathlib import Path

from benchmarks.harness.train_step.task import BETAS, CLIP_NORM, LOG_EVERY_STEPS, LR, WEIGHT_DECAY, Architecture, Task
from lmtrain.accounting.scaling_laws.depth_scaling import VALUE_GATE_WIDTH, value_embedding_layers
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.build import Run, build_run
from lmtrain.run.execution.run import quiet_libraries
from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog


def model_words(task: Task, architecture: Architecture) -> list[str]:
    """Return what makes the model: a Llama's, nanoGPT's or nanochat's of the task's dimensions."""
    settings = [
        f"model={'gpt2_124m' if architecture == 'gpt2' else 'llama_3_2_1b'}",
        f"model.width={task.width}",
        f"model.num_layers={task.num_layers}",
        f"model.num_heads={task.num_heads}",
        f"model.vocab_size={task.vocab_size}",
        f"model.max_context_tokens={task.context_tokens}",
        f"model.tie_embeddings={str(task.is_tied and architecture != 'nano').lower()}",
        *{"llama": llama_words, "gpt2": gpt2_words, "nano": nano_words}[architecture](task),
    ]
    return [settings[0], *(f"++{setting}" for setting in settings[1:])]  # ++: also those that the option leaves out


def llama_words(task: Task) -> list[str]:
    """Return what a Llama has."""
    return [
        "model.rope_scaling=null",
        f"model.head_width={task.head_width}",
        f"model.num_kv_heads={task.kv_heads}",
        f"model.feed_forward_width={task.feed_forward_width}",
    ]


def gpt2_words(task: Task) -> list[str]:
    """Return what nanoGPT's GPT-2 has: no biases, and GELU as it is."""
    return [f"model.feed_forward_width={4 * task.width}", "model.biases=false", "model.gelu_approximate=none"]


def nano_words(task: Task) -> list[str]:
    """Return what nanochat's model has, and ours of the depth dial with windows all long."""
    spread = task.width**-0.5
    return [
        "model.rope_scaling=null",
        f"model.head_width={task.head_width}",
        f"model.num_kv_heads={task.num_heads}",
        f"model.feed_forward_width={4 * task.width}",
        "model.activation=relu_squared",
        "model.rope_base=100_000.0",
        "model.norm_eps=1e-6",
        "model.norm_weights=false",
        "model.qk_norm=true",
        "model.qk_norm_scale=1.2",
        "model.logit_soft_cap=15.0",
        "model.embedding_norm=true",
        "model.embedding_skip=true",
        "model.backout=true",
        "model.embedding_smear=true",
        "model.smear_gate_width=24",
        f"model.value_embedding_layers={list(value_embedding_layers(task.num_layers))}",
        f"model.value_gate_width={VALUE_GATE_WIDTH}",
        f"model.init_std={spread}",
        "model.embedding_init_std=0.8",
        "model.head_init_std=0.001",
        f"model.value_embedding_init_std={spread}",
        "model.zero_init_outputs=true",
    ]


def words(task: Task, *, compile_word: str, architecture: Architecture = "llama") -> list[str]:
    """Return what one would type after `python train.py`."""
    return [
        *model_words(task, architecture),
        "data=synthetic",
        f"data.folder.root={task.data_root}",
        "tokenizer=byte_level",
        f"tokenizer.vocab_size={task.vocab_size}",
        "optimizer=adamw",
        f"optimizer.lr={LR}",
        f"optimizer.beta1={BETAS[0]}",
        f"optimizer.beta2={BETAS[1]}",
        f"optimizer.weight_decay={WEIGHT_DECAY}",
        f"gradient_clip_norm={CLIP_NORM}",
        "schedule=constant",
        f"precision={task.precision}",
        f"compile={compile_word if task.is_compiled else 'none'}",
        f"batch.context_tokens={task.context_tokens}",
        f"batch.tokens_per_step={task.tokens_per_step}",
        "batch.micro_batch_sequences=null",  # all sequences of a step at once, as the others
        f"trainer.accelerator={'cpu' if task.device == 'cpu' else 'gpu'}",
        f"trainer.cpu_threads={task.threads}",
        f"run.log_every_steps={LOG_EVERY_STEPS}",
        "budget=steps",
        f"budget.steps={task.max_steps}",
        f"cluster.peak_flops={1e15}",  # nothing reads it here; otherwise a CPU would measure its own
    ]


def make_job(
    task: Task, more: list[str], *, name: str, architecture: Architecture = "llama", compile_word: str = "auto"
) -> Job:
    """Compose and check the config, and take a run folder in the task's scratch folder."""
    quiet_libraries()
    overrides = [*words(task, compile_word=compile_word, architecture=architecture), *more]
    config = read_config(compose_config(overrides)).checked()
    root = Path(task.scratch) / "runs"
    job = Job(config=config, overrides=overrides, name=name, root=str(root), began=time.monotonic())
    RunFolder(job.folder, root=root).create()
    return job


def make_run(job: Job) -> Run:
    """Build the run of a job."""
    return build_run(job, rank=0, log=RunLog(job.folder))
