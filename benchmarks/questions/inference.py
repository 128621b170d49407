"""How fast a model writes: tokens a second by texts at once, first token, and the same by transformers' generate.

    python benchmarks/questions/inference.py                  # the default model's shape, as a Llama, on one thread
    python benchmarks/questions/inference.py --width 512 --num-layers 8

Both write greedily with the same random weights from the same exported folder, in turns in one process, and must write
the same tokens. Seconds are CPU time of the process, so that other work on the machine counts little; the median of the
ratios of neighbours counts. The share of bandwidth is the weights' bytes a token over a copy's bytes a second.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from lmtrain.composition.stored_runs.model_to_run import model_to_run
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.interop.hf_export import ModelToExport, export_folder
from lmtrain.interop.model_card import CardFacts
from lmtrain.interop.model_settings import node_of
from lmtrain.models.llama import Llama
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

VOCABULARY = 4096


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        made = save(Path(folder) / "model", width=asked.width, num_layers=asked.num_layers)
        ours, theirs = model_to_run(made, device="cpu"), load_theirs(made)
        print(f"llama, width {asked.width}, {asked.num_layers} layers, fp32, {asked.threads} threads,", end=" ")
        print(f"{asked.prompt_tokens} tokens read and {asked.new_tokens} written a text, torch {torch.__version__}")
        print("| texts | lmtrain, tokens/s | transformers, tokens/s | ratio | first token, ms | theirs, ms |")
        print("|---|---|---|---|---|---|")
        for num_texts in asked.texts:
            print(row(ours, theirs, num_texts, asked))
        print(f"share of a copy's bandwidth at one text: {bandwidth_share(ours, asked):.0%}")


def row(ours: LoadedModel, theirs: Any, num_texts: int, asked: argparse.Namespace) -> str:
    """Measure both in turns and return a line of the table."""
    generator = torch.Generator().manual_seed(num_texts)
    prompts = torch.randint(VOCABULARY, (num_texts, asked.prompt_tokens), generator=generator)
    pairs = [
        (write_ours(ours, prompts, asked.new_tokens), write_theirs(theirs, prompts, asked.new_tokens))
        for _ in range(asked.repeats + 1)
    ][1:]  # the first of each is a warm-up
    assert all(torch.equal(mine[0], other[0]) for mine, other in pairs), "both write the same tokens"
    firsts = [(write_ours(ours, prompts, 1)[1], write_theirs(theirs, prompts, 1)[1]) for _ in range(asked.repeats)]
    num_tokens = num_texts * asked.new_tokens
    mine, other = (statistics.median(pair[side][1] for pair in pairs) for side in (0, 1))
    ratio = statistics.median(pair[1][1] / pair[0][1] for pair in pairs)
    first, their_first = (1000 * statistics.median(pair[side] for pair in firsts) for side in (0, 1))
    return (
        f"| {num_texts} | {num_tokens / mine:,.0f} | {num_tokens / other:,.0f} | {ratio:.2f} | "
        f"{first:.1f} | {their_first:.1f} |"
    )


def write_ours(loaded: LoadedModel, prompts: torch.Tensor, num_new_tokens: int) -> tuple[torch.Tensor, float]:
    """Return the tokens [B, T] and the CPU seconds they took, from an empty cache."""
    engine = loaded.engine(EngineLimits(num_texts=len(prompts)))
    began = time.process_time()
    sampling = Sampling(temperature=0.0)
    texts = [
        engine.submit(Request(prompt=prompt, num_new_tokens=num_new_tokens, sampling=sampling))
        for prompt in prompts.tolist()
    ]
    while not engine.is_idle:
        engine.step()
    return torch.tensor([text.new_tokens for text in texts]), time.process_time() - began


def write_theirs(model: Any, prompts: torch.Tensor, num_new_tokens: int) -> tuple[torch.Tensor, float]:
    """Return the tokens [B, T] and the CPU seconds they took."""
    began = time.process_time()
    mask = torch.ones_like(prompts)
    written = model.generate(
        prompts,
        attention_mask=mask,
        max_new_tokens=num_new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return written[:, prompts.shape[1] :], time.process_time() - began


def bandwidth_share(loaded: LoadedModel, asked: argparse.Namespace) -> float:
    """Return which share of what a copy of memory moves a second the reading of weights moves, at one text."""
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    seconds = min(write_ours(loaded, prompt, asked.new_tokens)[1] for _ in range(3)) / asked.new_tokens
    shape = loaded.model.shape()
    source = torch.ones(1 << 26)
    target = torch.empty_like(source)
    copies: list[float] = []
    for _ in range(5):
        began = time.process_time()
        target.copy_(source)
        copies.append(time.process_time() - began)
    return 4 * shape.num_matmul_parameters / seconds / (2 * source.nbytes / min(copies))


def save(folder: Path, *, width: int, num_layers: int) -> Path:
    """Export a random model whose greedy texts do not hang on the last digits."""
    settings = {
        "width": width,
        "num_layers": num_layers,
        "num_heads": width // 64,
        "feed_forward_width": 4 * width,
        "vocab_size": VOCABULARY,
        "max_context_tokens": 256,
        "init_std": 0.2,
    }
    model = Llama(**settings)
    model.initialize_weights(torch.Generator().manual_seed(0))
    weights = model.state_dict()
    export_folder(
        ModelToExport(
            settings=node_of(Llama, **settings),
            weights=weights.__getitem__,
            dtype_of=lambda name: weights[name].dtype,
            tokenizer=ByteLevelTokenizer(vocab_size=VOCABULARY),
            facts=CardFacts(
                name="random",
                num_parameters=model.shape().num_parameters,
                num_active_parameters=model.shape().num_active_parameters,
                context_tokens=256,
            ),
        ),
        folder,
    )
    return folder


def load_theirs(folder: Path) -> Any:
    """Return the model of transformers."""
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


if __name__ == "__main__":
    main()
