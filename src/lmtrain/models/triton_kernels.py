"""Whether kernels of Triton can be launched on this machine's GPU."""

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

KERNEL_DTYPES: Final = frozenset({torch.bfloat16, torch.float16, torch.float32})  # they compute in fp32


def can_launch() -> bool:
    """Return whether Triton is installed, with a C compiler and the headers of Python for its launches.

    Without them training goes on by torch's own operations.
    """
    chosen = os.environ.get("CC")  # where it is set Triton looks for no other
    has_compiler = any(map(shutil.which, ("gcc", "clang") if chosen is None else (chosen,)))
    return has_compiler and (Path(sysconfig.get_path("include")) / "Python.h").is_file() and bool(find_spec("triton"))


CAN_LAUNCH: Final = can_launch()  # once: a compiler that traces a model does not look at files
