"""Task files of the harness from anyone: YAML of plain values, with templates in a process with limits.

The harness itself imports what `!function` and `class` name, downloads the code of a metric (`hf_evaluate`), reads a
pickle (`dataset_path: pandas`), and renders templates without a sandbox (lm-eval 0.4.13, datasets 5.0).
"""

import importlib.util
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from lmtrain.errors import DataError
from lmtrain.interop.template_renderer import TemplateRenderer
from lmtrain.storage import foreign_yaml
from lmtrain.storage.bounded_memory import bounded_memory

TABLES: Final = ("json", "csv", "parquet", "text", "arrow")  # of datasets' own readers, those of plain data
RUN_CODE: Final = ("class", "hf_evaluate", "trust_remote_code")
FIX: Final = "leave it out, or let the folder's code run with --allow-task-code"


def require_plain_tasks(folder: Path) -> None:
    """Refuse a folder of which a task file can run code.

    Raises:
        DataError: One can, or is no YAML.
    """
    files = {path.resolve() for path in folder.rglob("*.yaml")}
    for path in sorted(files):
        try:
            content = foreign_yaml.read(path)
        except (OSError, ValueError) as problem:
            raise DataError(f"{path} is no YAML of plain values ({problem}); {FIX}.") from problem
        for key, value in _settings(content):
            if key in RUN_CODE and value:
                raise DataError(f"{path}: {key}={value} runs code of its own; {FIX}.")
            if key == "dataset_path" and value not in TABLES and value in _readers():
                raise DataError(f"{path}: dataset_path={value} is none of {', '.join(TABLES)}; {FIX}.")
            for other in _listed(value) if key == "include" else ():
                if (path.parent / str(other)).resolve() not in files:
                    raise DataError(f"{path}: include={other} is no YAML file of {folder}; {FIX}.")


def use_sandbox(*, bounds_data: bool) -> None:
    """Let the harness render templates in a process with limits from now on; `bounds_data` where rows are a stranger's.

    Rows beyond the bound, whatever a few bytes of a table hold, are a MemoryError.
    """
    import lm_eval.api.task as tasks
    import lm_eval.utils as harness

    own: Any = harness.env
    if not isinstance(own, _Templates):
        harness.env = _Templates(TemplateRenderer(kind="task"))
    if bounds_data:
        tasks.datasets = _BoundedDatasets()


@final
class _Templates:
    """As much of a jinja2 environment as the harness asks for."""

    def __init__(self, renderer: TemplateRenderer) -> None:
        self._renderer = renderer

    def from_string(self, template: str) -> "_Template":
        """Return a template."""
        return _Template(self._renderer, template)


@final
@dataclass(frozen=True)
class _Template:
    renderer: TemplateRenderer
    text: str

    def render(self, **variables: Any) -> str:
        """Return its text; raises TemplateProblem."""
        return self.renderer.render(self.text, variables)


@final
class _BoundedDatasets:
    """The package `datasets` with a bound on the memory that loading may take."""

    def __getattr__(self, name: str) -> Any:
        import datasets

        return getattr(datasets, name)

    def load_dataset(self, *words: Any, **settings: Any) -> Any:
        """Load a data set."""
        import datasets

        load: Any = datasets.load_dataset
        with bounded_memory():
            return load(*words, **settings)


def _settings(content: Any) -> Iterator[tuple[str, Any]]:
    for value in content if isinstance(content, list) else ():
        yield from _settings(value)
    for key, value in content.items() if isinstance(content, dict) else ():
        yield str(key), value
        yield from _settings(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _readers() -> frozenset[str]:
    spec = importlib.util.find_spec("datasets")  # its import takes seconds
    folders = spec.submodule_search_locations if spec else None
    return frozenset(each.name for each in pkgutil.iter_modules([f"{one}/packaged_modules" for one in folders or ()]))
