"""The help page: every group and option with the first comment line of its file, read without importing Hydra."""

from pathlib import Path
from typing import Final

HELP_FLAGS: Final = frozenset({"-h", "--help"})

USAGE = """\
{program}: train a language model; every FLOP accounted for.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]      one run
  {program} -m KEY=VALUE,VALUE ...                  a sweep, one trial a value
  {program} --cfg job --resolve                     print the composed config and stop
  {program} -sc install=bash                        tab completion (eval its output)
  {program} --allow-target my_package. ...          let _target_ name your own code

Amounts read as people write them: budget.tokens=20M, callbacks.checkpoint.every_seconds=10min.
`budget.KEY=VALUE` alone replaces the default budget. The same command run again resumes (resume=auto|never|must|PATH).

Shared keys
{shared}
Groups and their options (* default)
{groups}"""


VERB_PAGES: Final = {
    "plan": """\
{program}: what a training config will need, take and cost; no GPU needed.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]      the words that `lmtrain train` then takes
  {program} model=llama_3_8b cluster=h100_8x strategy=fsdp budget.tokens=160B cluster.usd_per_gpu_hour=3
  {program} fleet.num_parameters=70B fleet.tokens=15T fleet.num_devices=1024 fleet.mfu=0.5
                                                        solve for whichever quantity is left out

  -m KEY=VALUE,VALUE     a plan of each value
  --web                  the same as a page of sliders and plots, on this machine only
  --json                 one object a config

Ends with 1 where the run does not fit its devices or its budget; the last lines then name the nearest change that does.
""",
    "bench": """\
{program}: time a training config's step by part on this machine, name the bottleneck and what would help.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]      the words that `lmtrain train` then takes
  {program} precision=fp32 compile=none             changes that may help are tried, those that compile are named

  -m KEY=VALUE,VALUE     a page of each value
  --seconds=8            how long to time, after the first step and the warm-up; changes get less
  --try                  try every change, also those that compile anew, which takes minutes
  --json                 one object a config

Trains on the config's own data, which is prepared first where it is not, in a folder that is deleted; keeps nothing.
""",
    "doctor": """\
{program}: check this machine before a long run of a config, each finding with its fix, and measure its peak.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]      the words that `lmtrain train` then takes

  --calibrate            take some real steps too, and keep their time for `lmtrain plan`
  calibrate=100          the same with so many steps
  --json                 one object

Ends with 1 where something is in the way of the run.
""",
}
EVERY_CHOICE: Final = "\n`lmtrain train --help` lists every group, option and shared key."

PREPARE_USAGE = """\
{program}: prepare text into shards of tokens, verified, once; prints their folder.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]      the same question again gets the same folder at once
  {program} source=files 'source.paths=[my/notes]'  your own text
  {program} source=fineweb_edu budget.tokens=20B    as much of a large data set as there are tokens to train on
  {program} --cfg job --resolve                     print the composed config and stop

How the text is prepared is data.folder.KEY=VALUE, as in data.folder.validation_fraction=0.01; a training run with the
same source, tokenizer and data.folder settings finds what was prepared.

Shared keys
{shared}
Groups and their options (* default)
{groups}"""


TOKENIZER_USAGE = """\
{program}: learn a tokenizer from a source's text or take one, and report its bytes per token beside others'.

  {program} [GROUP=OPTION ...] [KEY=VALUE ...]      learned once; the same question again gets the same folder
  {program} tokenizer.vocab_size=8192 source=files 'source.paths=[my/notes]'
  {program} tokenizer=huggingface tokenizer.name=gpt2
  {program} --cfg job --resolve                     print the composed config and stop

  --json                 one object

Shared keys
{shared}
Groups and their options (* default)
{groups}"""
USAGES: Final = {"train": USAGE, "prepare": PREPARE_USAGE, "make_tokenizer": TOKENIZER_USAGE}


def help_page(conf: Path, *, program: str, config: str = "train") -> str:
    """Render the help page of one entry config from the YAML files themselves."""
    main = conf / f"{config}.yaml"
    defaults = _default_options(main)
    folders = sorted(path for path in conf.iterdir() if path.is_dir() and any(path.glob("*.yaml")))
    shown = [folder for folder in folders if config == "train" or folder.name in defaults]
    groups = "".join(_group(folder, defaults.get(folder.name)) for folder in shown)
    return USAGES[config].format(program=program, shared=_shared_keys(main), groups=groups)


def verb_page(verb: str, *, program: str) -> str:
    """Render the help of a verb that takes a training run's words and some of its own."""
    return VERB_PAGES[verb].format(program=program) + EVERY_CHOICE


def describe(file: Path) -> str:
    """Return the first comment line of a YAML file that is not a Hydra directive."""
    comments = (line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#"))
    return next((comment for comment in comments if comment and not comment.startswith("@package")), "")


def _group(folder: Path, default: str | None) -> str:
    lines = [f"\n  {folder.name}\n"]
    for file in sorted(folder.glob("*.yaml")):
        mark = "*" if file.stem == default else " "
        lines.append(f"   {mark} {file.stem:<22} {describe(file)}\n")
    return "".join(lines)


def _default_options(main: Path) -> dict[str, str]:
    entries = (line.strip().removeprefix("- ") for line in main.read_text().splitlines() if line.startswith("  - "))
    pairs = (entry.split("#")[0].removeprefix("override ").partition(":") for entry in entries)
    return {group.strip().lstrip("/"): option.strip() for group, _, option in pairs if option.strip()}


def _shared_keys(main: Path) -> str:
    """List the commented scalars of the entry config: `key: value  # meaning`, one nesting level deep."""
    lines: list[str] = []
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
            lines.append(f"    {name + '=' + value.strip():<36} {comment.strip()}\n")
    return "".join(lines)
