"""torch.compile for a model, in place: parameter names stay as they are.

Shapes are static: every batch of a run, held-out ones included, has the same. Compiling block by block compiles one
block for all layers of the same code; compiling the whole model also fuses the head with the loss, for shallow models:
of a chunked loss in one graph, every chunk's product for the head's gradient lives to its end.
"""

import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmtrain.accounting.options.parts import CompileFacts
from lmtrain.losses.base import Compiler, TokenLoss
from lmtrain.models.base import LanguageModel, unchanged
from lmtrain.models.head import Loss, LossTotal, OutputHead

WHOLE_UP_TO_BLOCKS = 8  # one graph of many layers takes minutes to compile; a block compiled once serves all


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """How a model is compiled, in place."""

    apply: Callable[[LanguageModel], LanguageModel]


def none() -> Compilation:
    """Run eagerly."""
    return Compilation(apply=unchanged)


def blocks() -> Compilation:
    """Compile each block by itself."""
    return Compilation(apply=compile_blocks)


def whole_model() -> Compilation:
    """Compile forward and loss as one graph."""
    return Compilation(apply=compile_whole)


def auto() -> Compilation:
    """Compile a shallow model whole, a deep one block by block, and nothing without a compiler."""
    return Compilation(apply=compile_where_possible)


NONE_FACTS: Final = CompileFacts(compiles=False)
AUTO_FACTS: Final = CompileFacts(falls_back=True)


def compile_blocks(model: LanguageModel) -> LanguageModel:
    """Compile each block, the last norm, and the loss in its own way; like layers share one compiled block.

    torch stops a run, by default, at the ninth version of a function. Layers of one model may differ (windows, value
    embeddings), and each kind has a version with gradients and one without: as many are allowed as can be wanted.
    """
    from torch._dynamo import config  # seconds to import, spared to a run without compilation

    config.recompile_limit = max(config.recompile_limit, 2 * len(model.blocks))
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False)
    return compile_beside_blocks(model, partial(torch.compile, dynamic=False))  # a loss may be another package's


def compile_beside_blocks(model: LanguageModel, compiler: Compiler) -> LanguageModel:
    """Compile the last norm, and each loss as it says."""
    if (norm := model.last_norm) is not None:
        norm.forward = compiler(norm.forward)
    made: dict[int, tuple[Loss, Loss]] = {}  # by the loss, which is kept: an id is that of a living object

    def score(head: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], loss: Loss) -> LossTotal:
        if id(loss) not in made:
            made[id(loss)] = loss, loss.compiled(compiler) if isinstance(loss, TokenLoss) else compiler(loss.__call__)
        return made[id(loss)][1](head, hidden, targets)

    model.score = score
    return model


def compile_whole(model: LanguageModel) -> LanguageModel:
    """Compile forward and loss together."""
    model.compile(dynamic=False)
    return model


def compile_where_possible(model: LanguageModel) -> LanguageModel:
    """Compile by depth; without a compiler run eagerly and say so."""
    missing = missing_compiler()
    if missing:
        warnings.warn(f"compile=auto runs eagerly: {missing}. compile=none silences this.", stacklevel=2)
        return model
    return compile_whole(model) if is_shallow(model) else compile_blocks(model)


def is_shallow(model: LanguageModel) -> bool:
    """Return whether a model has few enough blocks for one graph."""
    return len(model.blocks) <= WHOLE_UP_TO_BLOCKS


def chosen_parts(model: LanguageModel) -> str:
    """Return the parts that `auto` compiles of a model, and why."""
    if is_shallow(model):
        return f"the whole model in one graph: {len(model.blocks)} blocks, of {WHOLE_UP_TO_BLOCKS} at most"
    return f"block by block: {len(model.blocks)} blocks, above {WHOLE_UP_TO_BLOCKS}"


def missing_compiler() -> str | None:
    """Return the obstacle to torch.compile on this machine, None where it works."""
    if torch.cuda.is_available():
        return None
    if sys.platform != "linux":
        return f"on {sys.platform} it is not known to work"
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        return "no C++ compiler (g++ or clang++) is on PATH"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "the headers of this Python (Python.h) are not installed"
    return None
