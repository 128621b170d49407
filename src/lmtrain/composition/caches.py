"""Where compiled kernels are kept."""

import os
from pathlib import Path


def keep_caches_in(folder: Path) -> None:
    """Point compile caches at a folder of the project, so that a second start finds what the first compiled."""
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        os.environ.setdefault(variable, str((folder / name).absolute()))
    # Weights kept in bf16 go through an autograd function of ours, whose traced graph torch keeps only when asked to:
    # a second start takes 11 instead of 18 CPU seconds.
    os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD", "1")
