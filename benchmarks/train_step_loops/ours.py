"""How lmtrain is configured for the task: a plain Llama with untied head, AdamW, and nothing that another lacks."""

import time
from pathlib import Path

from benchmarks.train_step_loops.task import BETAS, CLIP_NORM, LOG_EVERY_STEPS, LR, WEIGHT_DECAY, Task
from lmtrain.composition.build import Run, build_run
from lmtrain.composition.compose import compose_config
from lmtrain.composition.job import Job
from lmtrain.composition.run import quiet_libraries
from lmtrain.composition.start import check_config
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog


def words(task: Task, *, compile_word: str) -> list[str]:
    """Return what one would type after `python train.py`."""
    return [
        "model=llama_3_2_1b",
        f"model.width={task.width}",
        f"model.num_layers={task.num_layers}",
        f"model.num_heads={task.num_heads}",
        f"model.num_kv_heads={task.num_heads}",
        f"model.feed_forward_width={task.feed_forward_width}",
        f"model.vocab_size={task.vocab_size}",
        f"model.max_context_tokens={task.context_tokens}",
        "model.rope_scaling=null",
        "model.tie_embeddings=false",
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
        f"trainer.accelerator={'cpu' if task.device == 'cpu' else 'gpu'}",
        f"trainer.cpu_threads={task.threads}",
        f"run.log_every_steps={LOG_EVERY_STEPS}",
        "budget=steps",
        f"budget.steps={task.max_steps}",
        f"cluster.peak_flops={1e15}",  # nothing reads it here; otherwise a CPU would measure its own
    ]


def make_job(task: Task, more: list[str], *, name: str, compile_word: str = "auto") -> Job:
    """Compose and check the config, and take a run folder in the task's scratch folder."""
    quiet_libraries()
    overrides = [*words(task, compile_word=compile_word), *more]
    config = check_config(compose_config(overrides), allowed=[])
    root = Path(task.scratch) / "runs"
    job = Job(config=config, overrides=overrides, name=name, root=str(root), started_at=time.time())
    RunFolder(job.folder, root=root).create()
    return job


def make_run(job: Job) -> Run:
    """Build the run of a job."""
    return build_run(job, rank=0, log=RunLog(job.folder))
