"""Hydra's flags, as far as a run has a use for them; the others are refused with a replacement to type.

Hydra's own entry point is not used for runs: it instantiates the nodes under `hydra` in any file (callbacks, loggers,
launchers), past every allow-list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flag_parser import FlagParser

MULTIRUN: Final = frozenset({"-m", "--multirun"})
# Flags whose next word is theirs, and no override.
TAKE_A_WORD: Final = frozenset(
    {"--cfg", "-c", "--package", "-p", "--info", "-i", "--experimental-rerun"}
    | {"--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"}
)
OWN_FOLDER: Final = ("--config-dir", "-cd")  # its options may know any key
OF_VERBS: Final = ("--json", "--help", "--allow-target")
INSTEAD: Final = {
    "--info": "--cfg job --resolve prints the composed config",
    "--experimental-rerun": "the same command again goes on with its run",
    "--config-path": "--config-dir FOLDER adds options of your own",
    "--config-name": "--config-dir FOLDER adds options of your own, as experiment=NAME",
    "--run": "leave it out",
    "--version": "lmtrain --version prints it",
    "--shell-completion": "lmtrain completion bash prints a script for the shell",
}


@dataclass(frozen=True)
class Flags:
    """The flags of one command line; `show` is the part of the config to print instead of running."""

    is_sweep: bool = False
    show: str | None = None
    package: str | None = None
    resolve: bool = False
    config_dir: str | None = None


def parse_flags(words: Sequence[str], *, program: str = "lmtrain train", others: Sequence[str] = ()) -> Flags:
    """Take the flags of a command line apart; `others` are those that its program has besides.

    Raises:
        ConfigurationError: An unknown flag, an unsupported one, or two at odds.
    """
    parser = _parser(program, others)
    found: dict[str, Any] = vars(parser.parse_args([*words]))
    for flag, instead in INSTEAD.items():
        if found[flag.lstrip("-").replace("-", "_")] is not None:
            raise ConfigurationError(f"{flag} is not offered here: {instead}.")
    if not found["cfg"]:
        _refuse_unshown(found)
    if found["multirun"] and found["cfg"]:
        raise ConfigurationError("Only one of --multirun and --cfg can be: a sweep has many configs; leave -m out.")
    return Flags(
        is_sweep=found["multirun"],
        show=found["cfg"],
        package=found["package"],
        resolve=found["resolve"],
        config_dir=found["config_dir"],
    )


def _refuse_unshown(found: Mapping[str, Any]) -> None:
    """Refuse the flags of --cfg without it."""
    if found["package"] is not None:
        raise ConfigurationError(
            f"--package {found['package']} (-p) has no effect: it is the part of the config that --cfg job prints; "
            f"leave it out. A queue's partition is `lmtrain launch slurm` with --sbatch=partition={found['package']}."
        )
    if found["resolve"]:
        raise ConfigurationError("--resolve has no effect without --cfg job, which prints the config; leave it out.")


def known_flags() -> frozenset[str]:
    """Return every flag with a meaning here, those with a replacement included."""
    return frozenset(_parser().known)


def has_own_folder(words: Sequence[str]) -> bool:
    """Tell whether a command adds a folder of options."""
    return any(word.partition("=")[0] in OWN_FOLDER for word in words)


def _parser(program: str = "lmtrain train", others: Sequence[str] = ()) -> FlagParser:
    parser = FlagParser(prog=program, add_help=False, allow_abbrev=False, more=(*OF_VERBS, *others))
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("-p", "--package")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-cd", "--config-dir")
    for short, long in (
        *(("-i", "--info"), ("-cp", "--config-path"), ("-cn", "--config-name"), ("-r", "--run")),
        ("-sc", "--shell-completion"),
    ):
        parser.add_argument(short, long, nargs="?", const="")
    for word in ("--experimental-rerun", "--version"):
        parser.add_argument(word, nargs="?", const="")
    return parser
