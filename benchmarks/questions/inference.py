"""How fast a model writes: tokens a second by texts at once, first token; next to transformers and llama.cpp.

    python benchmarks/questions/inference.py                  # the default model's shape, as a Llama, on one thread
    python benchmarks/questions/inference.py --width 512 --num-layers 8
    python benchmarks/questions/inference.py --default        # the default model itself: others run its exported code

Read is the prompt up to the first token, written are the others; figures with strokes between them are in the order of
the header. All write greedily with the same random weights from the same exported folder, in turns; lmtrain and
transformers must write the same tokens. Seconds are CPU time of the process, so that other work on the machine counts
little; medians, and of the ratios of neighbours. llama.cpp takes part where `pip install xllamacpp gguf` was done. The
share of bandwidth is the weights' bytes a token over a copy's bytes a second.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from omegaconf import OmegaConf

from benchmarks.peers.inference import llama_cpp
from lmtrain.inference.engine import EngineLimits, TextEngine
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.interop.hf_export import CardFacts, ModelToExport, export_folder
from lmtrain.interop.model_settings import node_of
from lmtrain.models.llama import Llama
from lmtrain.run.stored_runs.loaded_models import model_to_run
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

VOCABULARY, CONTEXT = 4096, 256
WARM_UP_TURNS = 3  # an engine is kept, as a server's is: its memory is in use from then on
DEFAULT_MODEL = Path(__file__).resolve().parents[2] / "conf" / "model" / "llama_tiny.yaml"
OURS, TRANSFORMERS, LLAMA_CPP = "lmtrain", "transformers", "llama.cpp"
Written = tuple[torch.Tensor, float]
Write = Callable[[torch.Tensor, int], Written]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--default", action="store_true", help="the default model itself")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    settings = default_settings() if asked.default else llama_settings(width=asked.width, num_layers=asked.num_layers)
    with tempfile.TemporaryDirectory() as folder:
        made = save(Path(folder) / "model", settings)
        ours = model_to_run(made, device="cpu")
        hugging_face = partial(write_theirs, load_theirs(made))
        others: dict[str, Callable[[int], Write]] = {TRANSFORMERS: lambda _: hugging_face}
        if not asked.default and importlib.util.find_spec("xllamacpp") is not None:
            gguf = llama_cpp.save_gguf(made, Path(folder) / "model.gguf")
            others[LLAMA_CPP] = lambda num_texts: llama_cpp_of(gguf, num_texts, num_threads=asked.threads)
        print_header([OURS, *others], settings, asked)
        for num_texts in asked.texts:
            engine = ours.engine(EngineLimits(num_texts=num_texts))
            writers = {OURS: partial(write_ours, engine)} | {name: of(num_texts) for name, of in others.items()}
            print(row(writers, num_texts, asked), flush=True)
        print(f"\nshare of a copy's bandwidth at one text: {bandwidth_share(ours, asked):.0%}")


def print_header(names: Sequence[str], settings: Mapping[str, Any], asked: argparse.Namespace) -> None:
    """Print the conditions, and the names of a table's columns."""
    model = ("default" if asked.default else "llama") + (" compiled" if asked.compile else "")
    print(
        f"{model}, width {settings['width']}, {settings['num_layers']} layers, fp32, {asked.threads} threads,", end=" "
    )
    print(f"{asked.prompt_tokens} tokens read and {asked.new_tokens} written a text, torch {torch.__version__}\n")
    every, others = " / ".join(names), " / ".join(names[1:])
    columns = ["texts", "lmtrain, tokens/s", f"times of {others}", f"first token, ms: {every}", f"times of {others}"]
    columns += [f"read, tokens/s: {every}", f"written, tokens/s: {every}"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)


def row(writers: Mapping[str, Write], num_texts: int, asked: argparse.Namespace) -> str:
    """Measure all in turns and return a line of the table."""
    generator = torch.Generator().manual_seed(num_texts)
    size = (num_texts, asked.prompt_tokens)

    def prompts() -> torch.Tensor:
        return torch.randint(VOCABULARY, size, generator=generator)  # new ones: nothing is found in a cache

    whole = turns(writers, prompts, asked.new_tokens, repeats=asked.repeats)
    firsts = turns(writers, prompts, 1, repeats=asked.repeats)
    for mine, other in zip(whole[OURS], whole[TRANSFORMERS], strict=True):
        assert torch.equal(mine[0], other[0]), "both write the same tokens"
    seconds = {name: statistics.median(each for _, each in whole[name]) for name in writers}
    first = {name: statistics.median(each for _, each in firsts[name]) for name in writers}

    def each(figure: Callable[[str], float], digits: int = 0) -> str:
        return " / ".join(f"{figure(name):,.{digits}f}" for name in writers)

    told = [
        f"{num_texts * asked.new_tokens / seconds[OURS]:,.0f}",
        times_of_others(whole),
        each(lambda name: 1000 * first[name], 1),
        times_of_others(firsts),
        each(lambda name: num_texts * asked.prompt_tokens / first[name]),
        each(lambda name: num_texts * (asked.new_tokens - 1) / (seconds[name] - first[name])),
    ]
    return f"| {num_texts} | {' | '.join(told)} |"


def times_of_others(written: Mapping[str, Sequence[Written]]) -> str:
    """Return the medians of each other's seconds over lmtrain's of the same turn."""
    ours, others = written[OURS], [turns for name, turns in written.items() if name != OURS]
    ratios = [[theirs / mine for (_, theirs), (_, mine) in zip(turns, ours, strict=True)] for turns in others]
    return " / ".join(f"{statistics.median(each):.2f}" for each in ratios)


def turns(
    writers: Mapping[str, Write], prompts: Callable[[], torch.Tensor], num_new_tokens: int, *, repeats: int
) -> dict[str, list[Written]]:
    """Return what each writes and its seconds, again and again; the first turns are a warm-up, and fill the caches.

    Every other turn goes the other way round: none always finds the processor's caches as the same other left them.
    """
    order = list(writers)

    def turn(number: int) -> dict[str, Written]:
        given = prompts()
        return {name: writers[name](given, num_new_tokens) for name in order[:: -1 if number % 2 else 1]}

    written = [turn(number) for number in range(repeats + WARM_UP_TURNS)][WARM_UP_TURNS:]
    return {name: [each[name] for each in written] for name in writers}


def write_ours(engine: TextEngine, prompts: torch.Tensor, num_new_tokens: int) -> tuple[torch.Tensor, float]:
    """Return the tokens [B, T] and the CPU seconds they took."""
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


def llama_cpp_of(gguf: Path, num_texts: int, *, num_threads: int) -> Write:
    """Return how llama.cpp writes so many texts at once."""
    server = llama_cpp.load(gguf, num_texts=num_texts, context_tokens=CONTEXT, num_threads=num_threads)
    return lambda prompts, num_new_tokens: llama_cpp.write(server, prompts, num_new_tokens)


def bandwidth_share(loaded: LoadedModel, asked: argparse.Namespace) -> float:
    """Return which share of what a copy of memory moves a second the reading of weights moves, at one text."""
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    engine = loaded.engine(EngineLimits(num_texts=1))
    seconds = min(write_ours(engine, prompt, asked.new_tokens)[1] for _ in range(3)) / asked.new_tokens
    shape = loaded.model.shape()
    source = torch.ones(1 << 26)
    target = torch.empty_like(source)
    copies: list[float] = []
    for _ in range(5):
        began = time.process_time()
        target.copy_(source)
        copies.append(time.process_time() - began)
    return 4 * shape.num_matmul_parameters / seconds / (2 * source.nbytes / min(copies))


def llama_settings(*, width: int, num_layers: int) -> dict[str, Any]:
    """Return the settings of a Llama whose greedy texts do not hang on the last digits."""
    return {
        "width": width,
        "num_layers": num_layers,
        "num_heads": width // 64,
        "feed_forward_width": 4 * width,
        "vocab_size": VOCABULARY,
        "max_context_tokens": CONTEXT,
        "init_std": 0.2,
    }


def default_settings() -> dict[str, Any]:
    """Return the default model's settings, its head filled as its other matrices."""
    option: Any = OmegaConf.to_container(OmegaConf.load(DEFAULT_MODEL), resolve=False)
    more = {"vocab_size": VOCABULARY, "max_context_tokens": CONTEXT, "init_std": 0.2, "head_init_std": 0.2}
    return {name: value for name, value in option.items() if name not in ("_target_", "attention")} | more


def save(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Export a random model."""
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
                context_tokens=CONTEXT,
            ),
        ),
        folder,
    )
    return folder


def load_theirs(folder: Path) -> Any:
    """Return the model of transformers."""
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True).eval()


if __name__ == "__main__":
    main()
