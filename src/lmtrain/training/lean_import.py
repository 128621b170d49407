"""Import Lightning without the packages for metrics of sound, pictures and translations.

`import lightning` imports torchmetrics, and that imports scipy, matplotlib and transformers wherever they are installed
(torchmetrics 1.9, 2026): 1.9 to 2.6 of some 3.2 processor seconds, for no metric of a language model.
"""

import gc
import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

UNUSED: Final = ("matplotlib", "scienceplots", "scipy", "transformers")


def import_lightning() -> None:
    """Import Lightning; a metric of torchmetrics with one of `UNUSED` is then not to be had in this process."""
    # Garbage is a twentieth of the time of the import.
    imports = importlib.import_module("lightning_utilities.core.imports")
    with collecting_later(freezes=True), _absent(imports, UNUSED):
        importlib.import_module("lightning.pytorch")


@contextmanager
def _absent(imports: Any, packages: tuple[str, ...]) -> Generator[None]:
    """Make torchmetrics' two checks for other packages answer no for these."""
    requirement, is_available = imports.RequirementCache, imports.package_available
    is_met = requirement.__bool__
    requirement.__bool__ = lambda self: not str(self.requirement or "").startswith(packages) and is_met(self)
    imports.package_available = lambda name: name not in packages and is_available(name)
    try:
        yield
    finally:
        requirement.__bool__, imports.package_available = is_met, is_available


@contextmanager
def collecting_later(*, freezes: bool = False) -> Generator[None]:
    """Look for no garbage in this context; afterwards as before, with `freezes` not in the objects made in it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freezes:
            gc.freeze()
        if collects:
            gc.enable()
