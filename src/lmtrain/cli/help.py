"""The help pages of commands, groups and options, read from the YAML files and the sources without importing Hydra."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.option_files import (
    chosen_rows,
    default_options,
    describe,
    meanings_in,
    shared_rows,
    target_of,
)
from lmtrain.run.compose.paths import group_folders
from lmtrain.run.schema.signatures import default_settings

HELP_FLAGS: Final = frozenset({"-h", "--help"})
COLUMNS: Final = 80
KEY_COLUMNS: Final = 34

USAGE = """\
{program}: train a language model; every FLOP accounted for.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]
  {program} -m KEY=VALUE,VALUE ...         a sweep, one trial a value
  {program} --cfg job --resolve            print the composed config
  {program} --allow-target my_package. ... let _target_ name code of yours

Amounts: budget.tokens=20M, callbacks.checkpoint.every_seconds=10min. The same
command again goes on with its run.
"""


VERB_PAGES: Final = {
    "plan": """\
{program}: what a training config will need, take and cost; no GPU needed.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]  the words of `lmtrain train`
  {program} model=llama_3_8b cluster=h100_8x strategy=fsdp \\
      budget.tokens=160B batch.context_tokens=8192 batch.tokens_per_step=1048576
  {program} cluster=h100_8x fleet.num_parameters=8B fleet.tokens=160B
                         a fleet: the terms that are left out are computed

Terms of a fleet, fleet.TERM=VALUE
  work      num_parameters, tokens, tokens_per_parameter, flops; model=NAME
  devices   device, num_devices, hours or days, device_hours; cluster=NAME
  money     usd_per_gpu_hour, usd
  speed     mfu; precision=NAME, peak_flops

  -m KEY=VALUE,VALUE     a plan of each value
  --web [--port NUMBER]  a page of sliders and plots, on this machine only
  --json                 one object a config

Ends with 1 where the run does not fit its devices or its budget; the last lines
then name the nearest change that does. `lmtrain calc` sizes a tensor and times
a matrix product.
""",
    "launch": """\
{program}: one command for a run on several nodes: cluster.num_nodes.

  {program} slurm    [GROUP=OPTION ...] [KEY=VALUE ...]   submits a job
  {program} torchrun ... --address=HOST --node-rank=0     on each node
  {program} k8s      ... --image=NAME --claim=NAME        prints YAML
  {program} sky      ...                                  prints YAML

  --dry-run              print; write, submit and start nothing
  --json                 one object
slurm
  --time=24h             limit; without it, the queue's own
  --signal-before=300s   from the signal to save, to the limit
  --cpus-per-task=12     processor cores of a rank
  --sbatch=NAME=VALUE    another option, as --sbatch=partition=gpu
torchrun
  --address=HOST[:PORT]  of the first node
  --node-rank=0          this node's number
k8s
  --image=NAME           with lmtrain in it
  --claim=NAME           of a volume that all pods write
  --queue=NAME           of Kueue, to start all pods together
  --resource=cpu=96      of a pod, also memory=1Ti and rdma/NAME=8
""",
    "simulate": """\
{program}: the real step of one rank of a fleet that is not there: its
memory by kind, every message, and its time by the devices' and links' rates.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]  words of `lmtrain train`
  {program} model=llama_3_70b strategy=fsdp cluster=h100_8x --ranks 512

  --ranks 8,64,512       a table by number of ranks, as many tokens on each
  --strategies fsdp,hsdp the same under each strategy
  --json                 one object a config

Without batch.* words each device has one sequence of up to 8,192 tokens. Ends
with 1 where a fleet does not fit its devices.
""",
    "bench": """\
{program}: time a training config's step by part on this machine, and name
its bottleneck and changes that may help.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]      words of `lmtrain train`
  {program} precision=fp32 compile=none

  -m KEY=VALUE,VALUE     a page of each value
  --seconds=8            time of the measurement, after warm-up
  --json                 one object a config

Trains on the config's own data, prepared first if need be, in a folder that is
deleted afterwards; keeps nothing.
""",
    "doctor": """\
{program}: check this machine before a long run of a config, each
finding with its fix, and measure its peak.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]    words of `lmtrain train`

  --calibrate            take some real steps too: plans know their time
  --json                 one object

Ends with 1 where something is in the way of the run.
""",
    "parity": """\
{program}: hold a config's strategy to one process: losses, whole
gradients and weights of its first steps, tensor by tensor.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]    words of `lmtrain train`
  {program} strategy=fsdp parity.ranks=4 gradient_clip_norm=0.5

  parity.ranks=2         CPU processes over gloo, in place of the devices
  parity.steps=3         optimizer steps
  parity.tolerance=1e-4  of a loss, of a tensor's largest gradient; a hundred
                         times as much of its largest update
  --json                 one object

Trains in fp32 at a constant learning rate, compiled only where compile= is
typed, and keeps nothing. The page lists all that it changes: a model or step
too large for this machine is made smaller.

Ends with 1 where the two part; the page then names the first difference.
""",
}
EVERY_CHOICE: Final = "\n`lmtrain train --help` lists every group, option and shared key."

PREPARE_USAGE = """\
{program}: prepare text into shards of tokens, once; print their folder.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]
  {program} source=files 'source.paths=[my/notes]'   text of yours
  {program} source=fineweb_edu budget.tokens=20B     of a large data set
  {program} --cfg job --resolve                      the composed config

Settings of a preparation are data.folder.KEY=VALUE, as in
data.folder.validation_fraction=0.01; a training run with the same source,
tokenizer and data.folder settings finds the prepared folder.
"""


TOKENIZER_USAGE = """\
{program}: learn a tokenizer from a source's text or take one, and
report its bytes per token next to others'.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]
  {program} tokenizer.vocab_size=8K source=files 'source.paths=[notes]'
  {program} tokenizer=huggingface tokenizer.name=gpt2
  {program} --cfg job --resolve     print the composed config

  --json                 one object
"""
GROUPS: Final = """
Groups (* default)
{groups}
--help GROUP shows its options, --help GROUP=OPTION their keys, and --help keys
those that groups share."""
USAGES: Final = {"train": USAGE, "prepare": PREPARE_USAGE, "make_tokenizer": TOKENIZER_USAGE}


def help_page(conf: Path, *, program: str, config: str = "train", words: Sequence[str] = ()) -> str:
    """Render the help page of one entry config, or of the topic typed; --config-dir adds a person's own options.

    Raises:
        ConfigurationError: A word is neither a group, nor GROUP=OPTION, nor `keys`.
    """
    main = conf / f"{config}.yaml"
    defaults = default_options(main)
    shown = [path for path in group_folders(conf) if any(path.glob("*.yaml"))]
    shown = [folder for folder in shown if config == "train" or folder.name in defaults]
    own, topics = _own_folder(words)
    if not topics:
        groups = "".join(_summary(folder, defaults.get(folder.name)) for folder in shown)
        return (USAGES[config] + GROUPS).format(program=program, groups=groups)
    topic = topics[0]
    if "keys" in topics:
        return f"Shared keys\n{_shared_page(main)}"
    if not (conf / topic).is_dir() and (rows := _shared_page(main, topic)):
        return rows.rstrip()
    return _topic_page(topic, groups=shown, own=own, default=defaults.get(topic.partition("=")[0]))


def _own_folder(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the folder of --config-dir, None without one, and the topics."""
    parser = FlagParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-cd", "--config-dir", type=Path)
    asked, others = parser.parse_known_args([*words])
    return asked.config_dir, [word for word in others if not word.startswith("-")]


def verb_page(verb: str, *, program: str) -> str:
    """Render the help of a command that takes the words of a training run and some others."""
    return VERB_PAGES[verb].format(program=program) + EVERY_CHOICE


def _topic_page(topic: str, *, groups: Sequence[Path], own: Path | None, default: str | None) -> str:
    """Render the options of a group, or the keys of GROUP=OPTION with their meaning, unit and default."""
    group, equals, option = topic.partition("=")
    folders = {folder.name: folder for folder in groups}
    if group not in folders:
        raise ConfigurationError(
            f"--help {topic}: there is no group {group}; groups are {', '.join(folders)}.{suggest(group, folders)}"
        )
    places = (folders[group], *([own / group] if own else []))
    files = {file.stem: file for folder in places for file in folder.glob("*.yaml")}
    if not equals:
        return _group_page(group, files, default)
    if option not in files:
        from lmtrain.run.compose.suggestions import unknown_option  # only to refuse

        raise ConfigurationError(unknown_option(group, option, files))
    return _option_page(files[option])


def _group_page(group: str, files: dict[str, Path], default: str | None) -> str:
    """List a group's options, each with the first line of its file."""
    lines = [f"{group}=OPTION (* default)", ""]
    for name, file in sorted(files.items()):
        lines += _hanging(f" {'*' if name == default else ' '} {name}", describe(file), columns=26)
    return "\n".join([*lines, "", f"--help {group}=OPTION shows an option's keys."])


def _option_page(file: Path) -> str:
    """List an option's keys: those of its file and of the files it extends, then its code's other settings."""
    lines = [f"{file.parent.name}={file.stem}", *textwrap.wrap(describe(file), COLUMNS), ""]
    rows, meanings = chosen_rows(file), meanings_in(file.parent)
    for key, (value, comment) in rows.items():
        lines += _hanging(f"  {key}={value}", comment or meanings.get(key, ""), columns=KEY_COLUMNS)
    named = {key.rpartition(".")[2] for key in rows}
    more = {name: value for name, value in default_settings(target_of(file)).items() if name not in named}
    if more:
        lines += ["", "More settings, with the default of the code:"]
        for name, value in more.items():
            key = f"{file.parent.name}.{name}"
            lines += _hanging(f"  +{key}={_word(value)}", meanings.get(key, ""), columns=KEY_COLUMNS)
    return "\n".join(lines if rows or more else [*lines, "It has no keys."])


def _summary(folder: Path, default: str | None) -> str:
    """Return a group's line: the default first, then as many of the others as a line holds."""
    others = [file.stem for file in sorted(folder.glob("*.yaml")) if file.stem != default]
    names = [*([] if default in (None, "null") else [f"* {default}"]), *others]
    for left in range(len(names)):
        shown = names[: len(names) - left]
        line = f"  {folder.name:<22}{', '.join(shown)}" + (f" +{left}" if left else "")
        if len(line) <= COLUMNS:
            return f"{line}\n"
    return f"  {folder.name}\n"


def _shared_page(main: Path, topic: str = "") -> str:
    """List the commented scalars of the entry config with their meaning: all, or a key and those below it."""
    rows = [row for row in shared_rows(main) if not topic or f"{row[0]}.".startswith(f"{topic}.")]
    lines = (line for name, value, comment in rows for line in _hanging(f"  {name}={value}", comment, columns=36))
    return "".join(f"{line}\n" for line in lines)


def _word(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _hanging(head: str, text: str, *, columns: int) -> list[str]:
    """Lay a meaning next to its word, and below it where either is long."""
    wrapped = textwrap.wrap(text, COLUMNS - columns, break_on_hyphens=False) or [""]
    if len(head) >= columns:
        key, _, value = head.partition("=")
        heads = [head] if len(head) <= COLUMNS else [f"{key}=", f"      {value}"]
        return [*heads, *(" " * columns + line for line in wrapped if line)]
    return [f"{head:<{columns}}{wrapped[0]}".rstrip(), *(" " * columns + line for line in wrapped[1:])]
