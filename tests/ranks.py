"""Call a test's function on several ranks of one group, forked: no rank imports torch anew."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import forked, tiny


def on_ranks(function: Callable[..., Any], *words: str, folder: Path, num_ranks: int = 2) -> None:
    """Call `function(rank, *words)` on each rank; a failure of one is shown."""
    named = f"{function.__module__}:{function.__qualname__}"
    done = forked.run(
        Path(__file__), [named, *words], folder=folder, environment=tiny.environment(), num_ranks=num_ranks
    )
    assert done.returncode == 0, done.stderr[-3000:]


def _call(named: str, *words: str) -> None:
    import torch

    from lmtrain.launch.detect import outer_launcher
    from lmtrain.launch.process_group import join
    from tests.leave import leave

    torch.set_num_threads(1)
    outer = outer_launcher(os.environ)
    assert outer is not None
    join(outer)
    module, _, name = named.partition(":")
    getattr(importlib.import_module(module), name)(torch.distributed.get_rank(), *words)
    leave()


if __name__ == "__main__":
    _call(*sys.argv[1:])
