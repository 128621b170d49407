"""The option of a group by another spelling, its name elsewhere, or a word of its name."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

# Encodings of tiktoken, and itself, by a name on the hub.
TIKTOKEN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tiktoken", "gpt2_bpe", "r50k_base", "gpt2bpetokenizer"), "gpt2"),
    "cl100k_base": "Xenova/gpt-4",
    "o200k_base": "Xenova/gpt-4o",
}
AMOUNT: Final = re.compile(r"(?P<dollars>\$)?[\d.]+(?:[KMBGT]|(?P<time>s|min|h|d))?")
A_LETTER: Final = 0.9  # of two words of ten letters and more that differ in one
OFF: Final = ("false", "null", "none", "0", "off", "no")
EXPERTS: Final = "experts stay whole on every device: strategy=fsdp or hsdp (docs/decisions/0018)"
SEQUENCE: Final = "an all-to-all shares the heads out, and there is no ring (docs/decisions/0019)"
ZERO: Final = "its shards are those of ZeRO's stage 3"
ON_HOST: Final = "optimizer_cpu_offload=true keeps optimizer state in host memory"
OWN_TEXT: Final = "text of your own is source=files 'source.paths=[FOLDER]'"
OF_THE_HUB: Final = "texts of the hub are source=hf_dataset source.name=OWNER/NAME, or source=fineweb_edu"
# An option's name elsewhere, too unlike ours for a comparison of letters: by group.
CALLED_OPTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "precision": {
        "mixed": ("bf16_mixed", "fp16_mixed"),
        **dict.fromkeys(("bfloat16", "bf16", "torch_bfloat16", "amp_bf16"), ("bf16_mixed", "bf16_true")),
        **dict.fromkeys(("float16", "fp16", "half", "16", "16_mixed", "torch_float16"), ("fp16_mixed",)),
        **dict.fromkeys(("16_true", "fp16_true", "float16_true"), ("bf16_true", "fp16_mixed")),
        **dict.fromkeys(
            ("32", "32_true", "fp32_true", "float32", "float", "single", "full", "no", "amp_fp32"), ("fp32",)
        ),
        "torch_float32": ("fp32",),
        **dict.fromkeys(("tensorfloat32", "tf32_true", "tf32_mixed"), ("tf32",)),
        **dict.fromkeys(("float8", "transformer_engine", "fp8_mixed", "fp8_true"), ("fp8",)),
    },
    "schedule": {
        **dict.fromkeys(("wsd", "warmup_stable_decay", "trapezoidal"), ("trapezoid",)),
        **dict.fromkeys(("cosine", "cosine_with_restarts", "cosine_annealing", "cosineannealing"), ("warmup_cosine",)),
        **dict.fromkeys(("cosine_with_min_lr", "cosine_with_warmup", "coswithwarmup"), ("warmup_cosine",)),
        **dict.fromkeys(("linear_with_warmup", "polynomial", "linear_decay"), ("linear",)),
        **dict.fromkeys(("inverse_square_root", "inverse_sqrt_with_warmup"), ("inverse_sqrt",)),
        **dict.fromkeys(("none", "constant_with_warmup"), ("constant",)),
        "decay": ("cooldown",),
    },
    "optimizer": {
        **dict.fromkeys(("adam", "fused_adam", "paged_adamw", "paged_adamw_32bit"), ("adamw",)),
        **dict.fromkeys(("torch_optim_adamw", "distributed_fused_adam"), ("adamw",)),
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
        **dict.fromkeys(("context_parallel", "cp", "ring", "ulysses", "alst", "sequence_parallel", "sp"), ("context",)),
        "pp": ("pipeline",),
        "dp": ("ddp",),
        "sdp": ("fsdp", "ddp"),
        "data_parallel": ("ddp",),
    },
    "attention": {
        **dict.fromkeys(("flash_attention_2", "flash_attention", "flash_attn", "flash2", "fa2"), ("flash",)),
        "math": ("eager",),
        "xformers": ("sdpa",),
    },
    "recompute": dict.fromkeys(("full", "gradient_checkpointing", "true", "on", "yes"), ("every_block",)),
    "compile": dict.fromkeys(("true", "on", "yes", "default", "max_autotune", "reduce_overhead"), ("auto",)),
    "adapter": {"peft": ("lora",), "qlora": ("lora",)},
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
        **dict.fromkeys(("llama3", "llama3_8b", "meta_llama_3_8b", "meta_llama_3_8b_instruct"), ("llama_3_8b",)),
        **dict.fromkeys(("llama3_70b", "meta_llama_3_70b"), ("llama_3_70b",)),
        "llama3_405b": ("llama_3_405b",),
        "llama3_debugmodel": ("llama_tiny",),
        **dict.fromkeys(("llama2", "llama_2", "llama_2_7b_hf"), ("llama_2_7b",)),
        "nanochat": ("nano",),
    },
    "logger": {"tb": ("tensorboard",), "wb": ("wandb",)},
}
# The reason for an option in place of another program's, by the beginning or end of its name there: by group.
NEAREST: Final[Mapping[str, Mapping[str, str]]] = {
    "strategy": {"zero": ZERO, "deepspeed": ZERO, "shard_grad_op": ZERO, "offload": ON_HOST, "ring": SEQUENCE},
    "optimizer": {"paged": ON_HOST, "4bit": "its moments have 8 bits"},
}
# Options that others have and nothing here replaces by name, with the reason: by group.
NO_OPTION: Final[Mapping[str, Mapping[str, str]]] = {
    "data": {
        **dict.fromkeys(("textfiles", "text", "lit_data", "files"), OWN_TEXT),
        **dict.fromkeys(("json", "jsonl", "csv", "alpaca", "lima", "flan", "dolly"), OWN_TEXT),
        **dict.fromkeys(("tinystories", "openwebtext", "tinyllama", "c4", "fineweb", "wikitext"), OF_THE_HUB),
    },
    "precision": dict.fromkeys(
        ("64", "64_true", "fp64", "float64", "double"), "nothing is computed in 64 bits; the widest is precision=fp32"
    ),
    "strategy": {
        **dict.fromkeys(("tpu", "single_tpu", "xla", "xla_debug", "single_xla"), "it trains on CPUs and CUDA GPUs"),
        **dict.fromkeys(("expert", "experts", "expert_parallel", "ep"), EXPERTS),
    },
}


def spelled(option: str) -> str:
    """Return a word in the letters of our options: bf16-true, BF16_True and mine/bf16-true are bf16_true."""
    return re.sub(r"\W", "_", option.rpartition("/")[2].lower())


def options_meant(group: str, option: str, known: Iterable[str]) -> list[str]:
    """Return the options of that spelling or name elsewhere, the likeliest first; else those made of its parts.

    Else the longest at the beginning of it: deepspeed_stage_2 is deepspeed, and adamw_torch adamw.
    """
    known, word = sorted(known), spelled(option)
    elsewhere = CALLED_OPTIONS.get(group, {})
    called = [name for name in (word, *elsewhere.get(word, ())) if name in known]
    if word in OFF and not called:
        called = [name for name in ("none",) if name in known]
    called = called or [name for name in known if name.replace("_", "") == word.replace("_", "")]
    made_of_it = called or [name for name in known if word in name.split("_")] or _of_its_parts(word, known)
    begun = [name for name in (*known, *elsewhere) if word.startswith(f"{name}_")]
    if made_of_it or not begun or word in NO_OPTION.get(group, {}):
        return made_of_it
    if mistyped := difflib.get_close_matches(word, known, n=1, cutoff=A_LETTER):
        return mistyped
    return options_meant(group, max(begun, key=len), known)


def _of_its_parts(word: str, known: Iterable[str]) -> list[str]:
    """Return the options with all parts of a word of several, llama_3_70b for llama_70b; else those of its parts."""
    parts, options = {*word.split("_")}, {name: {*name.split("_")} for name in known}
    if len(parts) == 1:
        return []
    with_all = [name for name, own in options.items() if parts <= own]
    return with_all or [name for name, own in options.items() if len(own) > 1 and own <= parts]


def why_nearest(group: str, option: str) -> str:
    """Return the reasons for an option in the place of another program's, "" where it is the same."""
    word = spelled(option)
    reasons = [why for part, why in NEAREST.get(group, {}).items() if word.startswith(part) or word.endswith(part)]
    return "; ".join(dict.fromkeys(reasons))


def option_meant(group: str, option: str, known: Iterable[str]) -> str | None:
    """Return the likeliest of them, None where several are made of the word."""
    meant = options_meant(group, option, known)
    is_called_so = spelled(option) in {*meant, *OFF, *CALLED_OPTIONS.get(group, {})}
    return meant[0] if meant and (is_called_so or len(meant) == 1) else None


def amount_meant(group: str, option: str) -> str | None:
    """Return the key and value of budget=10M, None for another word."""
    amount = AMOUNT.fullmatch(option) if group == "budget" else None
    if amount is None:
        return None
    unit = (amount["dollars"] and "usd") or (amount["time"] and "hours") or "tokens"
    return f"budget.{unit}={option}"
