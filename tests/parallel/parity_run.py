"""Ranks that train tiny models by some strategies in turn, started by strategy_parity.py; rank 0 notes what it found.

Arguments: folder, and the cases as JSON. Documents are of unequal length, and the vocabulary divides by no number of
ranks. Each case is a fresh fit, perhaps from the checkpoint of another.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.distributed.tensor import DTensor

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import adapters_of
from lmtrain.data.packing import BestFit
from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.delta_net import GatedDelta
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.latent_attention import LatentWidths
from lmtrain.models.llama import Llama
from lmtrain.models.mamba import Mamba2
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.short_convolution import ShortConvolution
from lmtrain.optim.adamw import adamw
from lmtrain.optim.muon import muon
from lmtrain.optim.schedules import constant
from lmtrain.parallel.activation_checkpoint import every_block, selective
from lmtrain.parallel.compilation import compile_blocks, compile_whole
from lmtrain.parallel.diloco import diloco
from lmtrain.parallel.mesh import MeshStrategy, mesh
from lmtrain.parallel.replicate import ddp, single
from lmtrain.training.checkpointing.checkpoint_io import FACTS
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.intervals import is_step_end
from lmtrain.training.module import CausalLMModule
from lmtrain.training.trainer import make_trainer
from lmtrain.training.transforms import ModelTransform, ModelTransforms, unchanged
from tests.data.documents import make_dataset
from tests.leave import leave
from tests.parallel.halves import in_fp8, in_fp8_halves
from tests.parallel.sent import Message, Sent
from tests.parallel.strategy_parity import CLIP

CONTEXT_TOKENS, SEQUENCES_PER_STEP, VOCAB_SIZE = 16, 8, 301
LENGTHS = [3, 15, 7, 14, 2, 9, 13, 4, 12, 5, 8, 9, 11, 2, 10, 6] * 3
MODELS: dict[str, Callable[..., LanguageModel]] = {
    "gpt2": partial(GPT2, width=16, num_layers=2, num_heads=4),
    "llama": partial(Llama, width=16, num_layers=2, num_heads=4, num_kv_heads=2, feed_forward_width=24),
    "qwen": partial(
        Llama, width=16, num_layers=2, num_heads=4, num_kv_heads=4, feed_forward_width=24, qk_norm=True,
        tie_embeddings=True,
    ),
    "nano": partial(
        Llama, width=16, num_layers=3, num_heads=4, num_kv_heads=2, feed_forward_width=32, activation="relu_squared",
        embedding_norm=True, embedding_skip=True, backout=True, embedding_smear=True, num_bigram_buckets=16,
        value_embedding_layers=(0, 2), value_gate_width=4, key_smear=True, logit_soft_cap=15.0, qk_norm=True,
        qk_norm_scale=1.2,
        value_embedding_init_std=0.1,
    ),
    "wide": partial(Llama, width=64, num_layers=2, num_heads=4, num_kv_heads=2, feed_forward_width=96),  # for fp8
    "olmoe": partial(
        Llama, width=16, num_layers=2, num_heads=4, feed_forward_width=24, qk_norm=True, qk_norm_over="width",
        experts=Experts(num_experts=3, num_experts_per_token=2, load_balance_weight=0.01, router_z_weight=0.001),
    ),  # fewer experts than ranks
    "mixtral": partial(
        Llama, width=16, num_layers=2, num_heads=4, num_kv_heads=2, feed_forward_width=12,
        experts=Experts(
            num_experts=4, num_experts_per_token=2, load_balance_weight=0.01, router_z_weight=0.001, biases=True,
        ),
    ),
    "mamba": partial(
        Llama, width=16, num_layers=4, num_heads=4, num_kv_heads=2, feed_forward_width=24, activation="relu_squared",
        recurrent_layers=Mamba2(num_heads=4, head_width=4, state_width=8, num_groups=2), recurrent_pattern="RFAF",
        single_branch_layers=True, rotary_pattern="N",
    ),
    "future": partial(
        Llama, width=16, num_layers=2, num_heads=4, num_kv_heads=2, feed_forward_width=24, tie_embeddings=True,
        num_future_tokens=2,
    ),
    "latent": partial(
        Llama, width=16, num_layers=3, num_heads=4, feed_forward_width=8, rotary_neighbours=True,
        latent_attention=LatentWidths(latent=6, unrotated=4, rotated=2, value=4, query_latent=8),
        experts=Experts(
            num_experts=8, num_experts_per_token=2, scores="sigmoid", weight_scale=1.5, num_groups=4,
            num_groups_per_token=2, bias_step=0.01, shared_width=12, dense_layers=(0,), dense_width=24,
            load_balance_weight=0.01, router_z_weight=0.001,
        ),
    ),
    "sinks": partial(
        Llama, width=16, num_layers=2, num_heads=4, num_kv_heads=2, feed_forward_width=12, attention_sinks=True,
        window_tokens=5, window_pattern="SL", biases=("qkv", "output"),
        experts=Experts(num_experts=3, num_experts_per_token=2, biases=True, gate_limit=0.02),
    ),
    "delta": partial(
        Llama, width=16, num_layers=4, num_heads=4, num_kv_heads=2, feed_forward_width=12, qk_norm=True,
        zero_centered_norms=True, rotary_share=0.5, attention_output_gate=True, recurrent_pattern="RRRA",
        recurrent_layers=GatedDelta(num_key_heads=2, num_value_heads=4, key_width=4, value_width=6),
        experts=Experts(num_experts=4, num_experts_per_token=2, shared_width=12, shared_gate=True),
    ),
    "convolution": partial(
        Llama, width=16, num_layers=3, num_heads=4, num_kv_heads=2, feed_forward_width=24, qk_norm=True,
        recurrent_layers=ShortConvolution(biases=True), recurrent_pattern="RAR",
    ),
    "after": partial(
        Llama, width=16, num_layers=2, num_heads=4, feed_forward_width=24, norm_place="after", qk_norm=True,
        qk_norm_over="width",
    ),
    "capped": partial(
        Llama, width=16, num_layers=2, num_heads=4, num_kv_heads=2, feed_forward_width=24, norm_place="both",
        activation="geglu_tanh", attention_soft_cap=0.5, logit_soft_cap=3.0, embedding_multiplier=4.0,
        attention_multiplier=0.7, window_tokens=5, window_pattern="SL", window_rope_base=100.0, tie_embeddings=True,
    ),
}  # fmt: skip
# Heads of keys that no group of two divides: one, or three of GPT-2's.
for each in ("llama", "nano", "capped", "sinks"):
    MODELS[f"{each}_1"] = partial(MODELS[each], num_kv_heads=1)
MODELS["nano_4"] = partial(MODELS["nano"], num_kv_heads=4)  # which two kinds of groups of two divide
MODELS["gpt2_odd"] = partial(GPT2, width=24, num_layers=2, num_heads=3)
OPTIMIZERS: dict[str, Callable[[torch.nn.Module], torch.optim.Optimizer]] = {
    "adamw": partial(adamw, lr=1e-2, eps=1e-4),  # eps above the rounding of gradients that are zero on paper
    "muon": partial(
        muon, lr=0.02, embedding_lr=0.03, head_lr=0.004, vector_lr=0.01, row_beta=0.9, iteration_dtype="fp32", eps=1e-4
    ),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.3),
}
RECOMPUTE: dict[bool | str, ModelTransform] = {False: unchanged, True: every_block, "selective": selective}


def captured(model: LanguageModel) -> LanguageModel:
    """Capture and cut each block's graph as the compiler does, and make no kernels of it."""
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False, backend="aot_eager")
    return model


def with_adapters(model: LanguageModel) -> LanguageModel:
    """Freeze a model, and let it train by adapters that already change it."""
    Lora(rank=2, alpha=4).attach(model, seed=1)
    for number, (_, adapter) in enumerate(adapters_of(model)):
        for up in adapter.ups:
            torch.nn.init.normal_(up.weight, std=0.1, generator=torch.Generator().manual_seed(number))
    return model


COMPILE: dict[str, ModelTransform] = {
    "none": unchanged, "blocks": compile_blocks, "whole": compile_whole, "captured": captured,
}  # fmt: skip
PRECISION: dict[str, ModelTransform] = {
    "fp32": unchanged, "fp8": in_fp8, "fp8 in halves": in_fp8_halves, "fp8 gathered": partial(in_fp8, gather="fp8"),
}  # fmt: skip
OPTIMIZERS["muon_alone"] = partial(
    muon, lr=0.02, embedding_lr=0.03, head_lr=0.004, vector_lr=0.01, iteration_dtype="fp32", share_work=False
)
OPTIMIZERS["muon_bf16"] = partial(
    muon, lr=0.02, embedding_lr=0.03, head_lr=0.004, vector_lr=0.01, row_beta=0.9, iteration_dtype="bf16", eps=1e-4
)
LOSSES = {"plain": CrossEntropy(), "chunked": ChunkedCrossEntropy(chunk_tokens=5, z_loss_weight=1e-3)}
STRATEGIES: dict[str, Callable[..., Any]] = {
    "single": single,
    "ddp": ddp,
    "fsdp": partial(mesh, option="fsdp", compute_dtype=torch.float32),
    "hsdp": partial(mesh, option="hsdp", compute_dtype=torch.float32),
    "tensor": partial(mesh, option="tensor", compute_dtype=torch.float32),
    "fsdp_tensor": partial(mesh, option="fsdp_tensor", compute_dtype=torch.float32),
    "context": partial(mesh, option="context", compute_dtype=torch.float32),
    "diloco": diloco,
    "pipeline": partial(mesh, option="pipeline", compute_dtype=torch.float32),
    "mesh": partial(mesh, compute_dtype=torch.float32),
}


class Notes(pl.Callback):
    """Keeps the first step's whole gradients, saves where asked, and ends the run."""

    def __init__(self, *, last_step: int, save_to: Path | None, save_at: int, last_bits: int | None = None) -> None:
        self.last_step, self.save_to, self.save_at = last_step, save_to, save_at
        self.last_bits = None if last_bits is None else torch.Generator().manual_seed(last_bits)
        self.gradients: dict[str, torch.Tensor] = {}
        self.sent = Sent()
        self.sent_by_step: list[list[Message]] = []

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if not self.gradients:
            self.gradients = whole(pl_module, {name: one.grad for name, one in model_of(pl_module).named_parameters()})
        if self.last_bits is not None:
            for parameter in pl_module.parameters():
                shake(parameter.grad, self.last_bits)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not is_step_end(trainer, batch_idx):
            return
        self.sent_by_step.append(self.sent.take())
        if self.save_to and trainer.global_step == self.save_at:
            trainer.save_checkpoint(self.save_to)
            self.sent.take()
        trainer.should_stop = trainer.global_step >= self.last_step

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict) -> None:
        checkpoint[FACTS] = {"step": trainer.global_step, "tokens": 0, "identity": {}}


def shake(gradient: torch.Tensor | None, generator: torch.Generator) -> None:
    """Move each number by its last bit, up, down or not at all."""
    assert gradient is not None
    bits = gradient.view(torch.int32)
    moved = bits + torch.randint(-1, 2, bits.shape, generator=generator, dtype=torch.int32)
    bits.copy_(torch.where(gradient == 0, bits, moved))


def model_of(module: pl.LightningModule) -> LanguageModel:
    """Return the model of a module."""
    assert isinstance(module, CausalLMModule)
    return module.language_model


def whole(module: pl.LightningModule, tensors: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Return the tensors of parameters, whole and in the model's own order."""
    strategy = module.trainer.strategy
    own = strategy.in_model_order(tensors) if isinstance(strategy, MeshStrategy) else tensors
    return {
        name: (one.full_tensor() if isinstance(one, DTensor) else one).detach().clone()
        for name, one in own.items()
        if one is not None
    }


def train(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train one case and return its losses, gradient norms, first gradients and last weights."""
    num_ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    settings = dict(case.get("settings", {}))
    if "compute_dtype" in case:
        settings["compute_dtype"] = getattr(torch, case["compute_dtype"])
    parallelism = STRATEGIES[case["strategy"]](num_ranks=num_ranks, **settings)
    batch = plan_batches(
        Batch(
            context_tokens=CONTEXT_TOKENS,
            tokens_per_step=CONTEXT_TOKENS * SEQUENCES_PER_STEP,
            micro_batch_sequences=case.get("micro_batch_sequences", 1),
        ),
        num_ranks=num_ranks,
        tensor_ranks=parallelism.spread.tensor_ranks,
        context_ranks=parallelism.spread.context_ranks,
        num_stages=parallelism.spread.pipeline.num_stages,
    )
    with torch.device("meta"):
        model = MODELS[case["model"]](vocab_size=VOCAB_SIZE, max_context_tokens=CONTEXT_TOKENS)
    steps, save_to = case.get("steps", 3), case.get("save_to")
    torch.compiler.reset()  # another case's compilations are no versions of this one's code
    module = CausalLMModule(
        model,
        loss=LOSSES[case["loss"]],
        optimizer=OPTIMIZERS[case["optimizer"]],
        schedule=constant,
        batch=batch,
        total_steps=steps,
        seed=7,
        gradient_clip_norm=CLIP if case.get("clips", True) else None,
        outer=parallelism.outer,
        transforms=ModelTransforms(
            adapt=with_adapters if case.get("adapts") else unchanged,
            precision=PRECISION[case.get("precision", "fp32")],
            recompute=RECOMPUTE[case.get("recompute", False)],
            compile=COMPILE[case.get("compile", "none")],
            parallelize=parallelism.parallelize,
        ),
    )
    notes = Notes(
        last_step=steps,
        save_to=folder / save_to if save_to else None,
        save_at=case.get("save_at", 1),
        last_bits=case.get("last_bits"),
    )
    trainer = make_trainer(
        strategy=parallelism.strategy,
        precision="32-true",
        devices=num_ranks,
        accelerator="cpu",
        accumulation_micro_steps=batch.accumulation_micro_steps,
        folder=folder,
        callbacks=[notes],
    )
    packing = BestFit(document_mask=True) if case.get("packs", True) else None
    data = TokenDataModule(folder=folder / "data", batch=batch, seed=7, packing=packing)
    resume = case.get("resume")
    with notes.sent if case.get("notes_messages") else nullcontext():  # the mode takes half of a step
        trainer.fit(module, datamodule=data, ckpt_path=folder / resume if resume else None, weights_only=True)
    records = module.step_metrics.drain()
    return {
        "losses": {record.step: record.loss for record in records},
        "norms": {record.step: record.gradient_norm for record in records},
        "tokens": {record.step: record.num_tokens for record in records},
        "sent": notes.sent_by_step,
        "outer_bytes": None if parallelism.outer is None else parallelism.outer.sent_bytes,
        "gradients": notes.gradients,
        "weights": whole(module, dict(model_of(module).named_parameters())),
    }


def main(folder: Path, cases: list[dict[str, Any]]) -> None:
    """Train every case on these ranks, one after another."""
    torch.set_num_threads(1)
    outer = outer_launcher(os.environ)
    join(outer, timeout_seconds=60)
    is_first = outer is None or outer.rank == 0
    if is_first and not (folder / "data").exists():
        make_dataset(folder / "data", LENGTHS, num_ids=VOCAB_SIZE)
    if outer is not None:
        torch.distributed.barrier()
    found = [train(case, folder) for case in cases]
    if is_first:
        torch.save(found, folder / f"found{outer.world_size if outer else 1}.pt")
    if outer is not None:
        leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
