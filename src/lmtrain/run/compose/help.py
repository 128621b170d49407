"""The help pages of commands: usage, groups and options by name, read without importing Hydra."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmtrain.run.compose.help_topics import COLUMNS, hanging, topic_page
from lmtrain.run.compose.paths import group_folders

HELP_FLAGS: Final = frozenset({"-h", "--help"})

USAGE = """\
{program}: train a language model; every FLOP accounted for.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]
  {program} -m KEY=VALUE,VALUE ...         a sweep, one trial a value
  {program} --cfg job --resolve            print the composed config
  {program} --allow-target my_package. ... let _target_ name code of yours

Amounts: budget.tokens=20M, callbacks.checkpoint.every_seconds=10min. The same
command again goes on with its run.

Groups (* default)
{groups}
--help GROUP shows its options, --help GROUP=OPTION their keys, and --help keys
those that groups share."""


VERB_PAGES: Final = {
    "plan": """\
{program}: what a training config will need, take and cost; no GPU needed.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]  the words of `lmtrain train`
  {program} model=llama_3_8b cluster=h100_8x strategy=fsdp \\
      budget.tokens=160B batch.context_tokens=8192 batch.tokens_per_step=1048576
  {program} cluster=h100_8x fleet.num_parameters=8B fleet.tokens=160B
                         a fleet: the terms that are left out are computed

Terms of a fleet, fleet.TERM=VALUE; time and money beside others are limits
  work      num_parameters, tokens, tokens_per_parameter, flops; model=NAME
  devices   device, num_devices, hours or days, device_hours; cluster=NAME
  money     usd_per_gpu_hour, usd
  speed     mfu, also a range: 0.3-0.5; precision=NAME, dtype, peak_flops

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
""",
    "simulate": """\
{program}: the real step of one rank of a fleet that is not there: its
memory by kind, every message, and its time by the devices' and links' rates.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]  words of `lmtrain train`
  {program} model=llama_3_70b strategy=fsdp cluster=h100_8x --ranks 512

  --ranks 8,64,512       a table of so many ranks, each with as many tokens
  --strategies fsdp,hsdp the same under each strategy
  --plot fleets.svg      their speeds over ranks, drawn to a file
  --json                 one object a config

Without batch.* words each device has one sequence of up to 8,192 tokens. Ends
with 1 where a fleet does not fit its devices.
""",
    "bench": """\
{program}: time a training config's step by part on this machine, name
its bottleneck, and try changes against it.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]      words of `lmtrain train`
  {program} precision=fp32 compile=none

  -m KEY=VALUE,VALUE     a page of each value
  --seconds=8            time of a measurement, after warm-up; less for changes
  --try                  try also changes with a compilation: minutes each
  --ladder               naive, bf16, fused attention, batch, compile, ranks:
                         --steps=5 of each, in processes of their own
  --json                 one object a config

Trains on the config's own data, prepared first if need be, in a folder that is
deleted afterwards; keeps nothing.
""",
    "tune": """\
{program}: find a setting by short trainings of the config itself, in
processes and folders of their own.

  {program} lr    [GROUP=OPTION ...] [KEY=VALUE ...]
  {program} batch [GROUP=OPTION ...] [KEY=VALUE ...]
                         the words of `lmtrain train`

lr: a range test, all learning rates of the optimizer rising together
  --steps=100            optimizer steps
  --lowest=0.001         share of the config's learning rate at the first step
  --highest=100          and at the last
batch: the largest batch.micro_batch_sequences, beside the plan's
  --steps=3              optimizer steps of each try

  --json                 one object

Ends with 1 where there is nothing to suggest: the loss never falls, or not one
sequence fits.
""",
    "doctor": """\
{program}: check this machine before a long run of a config, each
finding with its fix, and measure its peak.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]    words of `lmtrain train`

  --calibrate            take some real steps too: plans know their time
  calibrate=100          the same with so many steps
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

Groups (* default)
{groups}
--help GROUP shows its options, --help GROUP=OPTION their keys, and --help keys
those that groups share."""


TOKENIZER_USAGE = """\
{program}: learn a tokenizer from a source's text or take one, and
report its bytes per token beside others'.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]
  {program} tokenizer.vocab_size=8K source=files 'source.paths=[notes]'
  {program} tokenizer=huggingface tokenizer.name=gpt2
  {program} --cfg job --resolve     print the composed config

  --json                 one object

Groups (* default)
{groups}
--help GROUP shows its options, --help GROUP=OPTION their keys, and --help keys
those that groups share."""
USAGES: Final = {"train": USAGE, "prepare": PREPARE_USAGE, "make_tokenizer": TOKENIZER_USAGE}


def help_page(conf: Path, *, program: str, config: str = "train", words: Sequence[str] = ()) -> str:
    """Render the help page of one entry config from the YAML files themselves, or of the other topic typed.

    Raises:
        ConfigurationError: A word is neither a group, nor GROUP=OPTION, nor `keys`.
    """
    main = conf / f"{config}.yaml"
    defaults = default_options(main)
    folders = [path for path in group_folders(conf) if any(path.glob("*.yaml"))]
    shown = [folder for folder in folders if config == "train" or folder.name in defaults]
    topics = [word for word in words if not word.startswith("-")]
    if "keys" in topics:
        return f"Shared keys\n{_shared_page(main)}"
    rows = _shared_page(main, topics[0]) if topics else ""
    if rows and not (conf / topics[0]).is_dir():
        return rows.rstrip()
    if topics:
        group = topics[0].partition("=")[0]
        return topic_page(conf, topics[0], groups=shown, default=defaults.get(group))
    groups = "".join(_summary(folder, defaults.get(folder.name)) for folder in shown)
    return USAGES[config].format(program=program, groups=groups)


def verb_page(verb: str, *, program: str) -> str:
    """Render the help of a verb with a training run's words and some of its own."""
    return VERB_PAGES[verb].format(program=program) + EVERY_CHOICE


def _summary(folder: Path, default: str | None) -> str:
    """Return a group's line: the default first, then as many of the others as a line holds."""
    others = [file.stem for file in sorted(folder.glob("*.yaml")) if file.stem != default]
    default = None if default == "null" else default
    line = f"  {folder.name:<22}" + (f"* {default}" if default else "")
    joined = [", " if default else "", *(", " for _ in others)]
    for index, (comma, name) in enumerate(zip(joined, others, strict=False)):
        left = len(others) - index
        tail = "" if left == 1 else f" +{left - 1}"
        if len(line + comma + name + tail) > COLUMNS:
            return f"{line} +{left}\n"
        line += comma + name
    return f"{line}\n"


def default_options(main: Path) -> dict[str, str]:
    """Return the option of each group in the defaults of an entry config."""
    entries = (line.strip().removeprefix("- ") for line in main.read_text().splitlines() if line.startswith("  - "))
    pairs = (entry.split("#")[0].removeprefix("override ").partition(":") for entry in entries)
    named = {group.strip().lstrip("/"): option.strip() for group, _, option in pairs}
    return {group: option for group, option in named.items() if option}


def _shared_page(main: Path, topic: str = "") -> str:
    """List the commented scalars of the entry config with their meaning: all, or a key and those below it."""
    rows = [row for row in _shared_rows(main) if not topic or f"{row[0]}.".startswith(f"{topic}.")]
    lines = (line for name, value, comment in rows for line in hanging(f"  {name}={value}", comment, columns=36))
    return "".join(f"{line}\n" for line in lines)


def shared_keys(main: Path) -> dict[str, str]:
    """Return the commented scalars of the entry config with their defaults."""
    return {name: value for name, value, _ in _shared_rows(main)}


def is_of_training_alone(key: str, *, config_name: str, conf: Path) -> bool:
    """Tell whether a key's group or node is in the config of training, and not in this one."""

    def names(config: str) -> set[str]:
        main = conf / f"{config}.yaml"
        return {*default_options(main), *(each.partition(".")[0] for each in shared_keys(main))}

    return key.partition(".")[0] in names("train") - names(config_name)


def _shared_rows(main: Path) -> list[tuple[str, str, str]]:
    """Read `key: value  # meaning`, one nesting level deep."""
    rows: list[tuple[str, str, str]] = []
    parent = ""
    for line in main.read_text().splitlines():
        key, colon, rest = line.partition(":")
        if not colon or line.lstrip().startswith(("#", "-")):
            continue
        value, _, comment = rest.partition(" #")
        if not line.startswith(" "):
            parent = key
        if comment and key.strip() != "defaults" and parent not in {"hydra", "defaults"}:
            name = key if not line.startswith(" ") else f"{parent}.{key.strip()}"
            rows.append((name, value.strip(), comment.strip()))
    return rows
