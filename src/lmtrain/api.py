"""The functions that `import lmtrain` offers: train, plan, load, compare and runs.

They do what the commands of the same names do, in this process, and return objects in place of printed pages.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from lmtrain.errors import EXIT_DONE, ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.paths import conf_folder
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_log import Point, read_points
from lmtrain.tracking.status import read_status

if TYPE_CHECKING:
    from lmtrain.report.comparison import Comparison
    from lmtrain.run.load import Model
    from lmtrain.run.stored_runs.job import Job
    from lmtrain.simulate.any_model import Fit

PLAIN: Final = re.compile(r"[\w./:+%@~$-]+")  # text that Hydra's grammar reads as it stands


@dataclass(frozen=True)
class Run:
    """A run's folder, read on request.

    Example: `lmtrain.train("model=llama_tiny", budget="100K").losses[-1]`
    """

    folder: Path

    @property
    def name(self) -> str:
        """Return the run's name."""
        return self.folder.name

    @property
    def status(self) -> str:
        """Return RUNNING, FINISHED, FAILED or KILLED; UNKNOWN where it never started."""
        status = read_status(self.folder)
        return "UNKNOWN" if status is None else status.status

    @cached_property
    def points(self) -> list[Point]:
        """Return the lines of metrics.jsonl: `time`, `step`, `tokens` and `metrics` of each."""
        return list(read_points(self.folder / "metrics.jsonl"))

    @property
    def losses(self) -> list[float]:
        """Return the training loss of each logged step, in nats per token."""
        return [loss for _, loss in self.curve("train/loss")]

    @property
    def metrics(self) -> dict[str, float]:
        """Return the newest value of each metric."""
        return {name: value for point in self.points for name, value in point.metrics.items()}

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Return the (step, value) pairs of a metric, such as `validation/bits_per_byte`."""
        return [(point.step, point.metrics[metric]) for point in self.points if metric in point.metrics]

    @property
    def plan(self) -> dict[str, Any]:
        """Return the plan made before the first step, under the keys of `lmtrain plan --json`."""
        return read_json(self.folder / "plan.json")

    @property
    def ledger(self) -> dict[str, Any]:
        """Return the account of the run's time, FLOPs and dollars, as `lmtrain ledger --json` prints it."""
        from lmtrain.report.ledger import read_ledger

        return read_ledger(self.folder).to_json()

    def load(self, **settings: Any) -> "Model":
        """Open the newest checkpoint as a model; settings are those of `lmtrain.load`."""
        return load(self.folder, **settings)


def compose(
    *overrides: str, allow_targets: Sequence[str] = (), config_dir: str | Path | None = None, **groups: Any
) -> "Job":
    """Return the checked, frozen specification of a run; nothing is allocated and no file is written.

    `overrides` are arguments of the command line, such as "optimizer.lr=1e-3". Keyword arguments are groups and keys:
    `model="llama_tiny"`, `optimizer={"lr": 1e-3}`, `seed=1`. `budget` also takes an amount: "2M" (tokens), "2h", "$5".
    `allow_targets` are packages of your own whose classes a config may name, `config_dir` a folder with your options.

    Raises:
        ConfigurationError: An argument is unknown, out of range, or conflicts with another.
    """
    from lmtrain.cli.commands.train import one_job
    from lmtrain.run.compose.arguments import parse_arguments

    flags = [word for target in allow_targets for word in ("--allow-target", target)]
    flags += [] if config_dir is None else ["--config-dir", str(config_dir)]
    return one_job(parse_arguments([*_typed(overrides), *_words(groups), *flags]))


def train(*overrides: "str | Job", **groups: Any) -> Run:
    """Train a model in this process and return its run; several devices get a process each.

    The arguments are those of `compose`, or one specification that it returned. The losses are those of the command
    `lmtrain train` with the same arguments, bit for bit.

    Raises:
        ConfigurationError: An argument is wrong; nothing was started.
        DataError: The data is damaged or missing.
        EnvironmentProblem: The machine lacks something, or the run failed or was stopped before its end.

    Example: `lmtrain.train("model=llama_tiny", budget="2M", optimizer={"lr": 1e-3})`
    """
    from lmtrain.launch.detect import outer_launcher
    from lmtrain.run.execution.start import start
    from lmtrain.run.stored_runs.job import Job

    given = [each for each in overrides if isinstance(each, Job)]
    words = [each for each in overrides if not isinstance(each, Job)]
    if given and (words or groups or len(given) > 1):
        raise ConfigurationError("train: takes one specification alone, or overrides and groups, not both.")
    job = given[0].begun_now() if given else compose(*words, **groups)
    code = start(job, outer=outer_launcher(os.environ))
    if code != EXIT_DONE:
        raise EnvironmentProblem(f"run {job.name}: ended with exit code {code} before its end; see {job.folder}.")
    return Run(job.folder)


def plan(
    *overrides: str, model: Any = None, batch: int | tuple[int, int] = 1, optimizer: Any = None, **settings: Any
) -> dict[str, Any]:
    """Return the plan of a run: parameters, FLOPs, memory, time and cost, under the keys of `lmtrain plan --json`.

    With overrides and groups it plans that run. With `model`, an `nn.Module` that maps token ids [B, T] to logits or a
    configuration of transformers, it plans a training of that model: `batch` is the sequences of a step or
    (sequences, tokens of each), `optimizer` a class, an instance, a function of the parameters, or a name such as
    "adamw"; further settings are those of `lmtrain.simulate.any_model.plan_module`.

    Raises:
        ConfigurationError: An argument is unknown, out of range, or conflicts with another.
    """
    if model is None or isinstance(model, str):
        from lmtrain.cli.commands.plan import plan_json

        groups = {"model": model, "optimizer": optimizer, "batch": None if batch == 1 else batch, **settings}
        words = _words({name: value for name, value in groups.items() if value is not None})
        return plan_json([*_typed(overrides), *words])[0]
    if overrides:
        raise ConfigurationError(f"plan: takes a module without overrides, got {overrides[0]!r}; leave it out.")
    from lmtrain.run.schema.signatures import require_arguments
    from lmtrain.simulate.any_model import plan_module

    require_arguments("plan(model=MODULE)", settings, plan_module)
    chosen = {} if optimizer is None else {"optimizer": optimizer}
    return plan_module(model, batch=batch, **chosen, **settings)


def fits(model: Any, *, batch: int | tuple[int, int] = 1, optimizer: Any = None, device: str, **settings: Any) -> "Fit":
    """Return whether a step of any `nn.Module`, or of a configuration of transformers, fits one device.

    The answer is true or false, and has `num_bytes`, `device_bytes` and the nearest `change` that fits. The arguments
    are those of `lmtrain.plan(model=...)`; `device` is a product name of the hardware table.

    Raises:
        ConfigurationError: An argument is unknown or out of range.
    """
    from lmtrain.run.schema.signatures import require_arguments
    from lmtrain.simulate import any_model

    require_arguments("fits", settings, any_model.fits)
    chosen = {} if optimizer is None else {"optimizer": optimizer}
    return any_model.fits(model, batch=batch, device=device, **chosen, **settings)


def load(
    path: str | Path,
    *,
    weights: Literal["raw", "ema"] = "raw",
    device: str = "auto",
    allow_targets: Sequence[str] = (),
) -> "Model":
    """Open a run (its newest checkpoint), a checkpoint, an imported folder or a Hugging Face folder.

    The model has `generate`, `chat`, `score` and `module`. `weights` "ema" takes the moving average of a run trained
    with one. `device` "auto" is the accelerator where there is one, else the CPU. `allow_targets` are classes outside
    the allow-list that the run's own config may name.

    Raises:
        ConfigurationError: The path is not one of these, or the machine has no such device.
        DataError: The folder is damaged, has no tokenizer, or a weight is NaN or infinite.
        EnvironmentProblem: Every checkpoint of the run is damaged.

    Example: `lmtrain.load("runs/notes").generate("You may copy", num_new_tokens=60)`
    """
    from lmtrain.run.load import Model
    from lmtrain.run.stored_runs.loaded_models import model_to_run

    return Model(model_to_run(Path(path), weights=weights, device=device, allowed=allow_targets))


def runs(root: str | Path = "runs") -> list[Run]:
    """Return the runs below a folder, the one that changed last at the end; none where there is no such folder."""
    from lmtrain.report.runs.find import runs_in

    folder = Path(root)
    return [Run(path) for path in runs_in(folder)] if folder.is_dir() else []


def compare(*paths: "str | Path | Run", **settings: Any) -> "Comparison":
    """Compare runs: seeds of one configuration are one choice, with its mean and spread.

    `paths` are runs, folders with runs below them, or sweeps. Settings: `metric`, `baseline`, `target`.

    Raises:
        ConfigurationError: A path has no run, or a setting names no choice.
        DataError: No run has finished, or the runs do not compare.
    """
    from lmtrain.report.comparison import compare as compare_folders
    from lmtrain.report.runs.find import find_runs

    return compare_folders(
        find_runs([path.folder if isinstance(path, Run) else Path(path) for path in paths]), **settings
    )


def _typed(overrides: Sequence[Any]) -> Sequence[str]:
    """Return positional arguments, which are those of the command line."""
    if wrong := [each for each in overrides if not isinstance(each, str)]:
        raise ConfigurationError(
            f"overrides must be text such as 'optimizer.lr=1e-3', one an argument; got {wrong[0]!r}."
        )
    return overrides


def _words(groups: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return keyword arguments as overrides of the command line."""
    words: list[str] = []
    for name, value in groups.items():
        if isinstance(value, Mapping):
            words += _words(value, prefix=f"{prefix}{name}.")
        elif not prefix and name == "budget" and value is not None:
            words += _budget(str(value))
        else:
            words.append(f"{prefix}{name}={_text(value)}")
    return words


def _budget(amount: str) -> list[str]:
    """Return the overrides of a budget: an option's name, or an amount of tokens, time or dollars."""
    if (conf_folder() / "budget" / f"{amount}.yaml").exists():
        return [f"budget={amount}"]
    if amount.startswith("$"):
        return [f"budget.usd={amount.removeprefix('$')}"]
    if re.fullmatch(r"[\d.]+ ?(s|min|h|d)", amount):
        return [f"budget.hours={_text(amount)}"]
    return [f"budget.tokens={_text(amount)}"]


def _text(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    text = str(value)
    return text if PLAIN.fullmatch(text) else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
