"""sbatch's own flags on the line of `lmtrain launch slurm`: each with the word to type here, all in one message.

https://slurm.schedmd.com/sbatch.html
"""

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.launch.sbatch import OWN, PASSED, SWITCHES, long_option_near

SHORT: Final = {
    "-p": "partition",
    "-t": "time",
    "-A": "account",
    "-N": "nodes",
    "-n": "ntasks",
    "-J": "job-name",
    "-o": "output",
    "-e": "error",
    "-C": "constraint",
    "-q": "qos",
    "-d": "dependency",
    "-G": "gpus",
    "-w": "nodelist",
    "-x": "exclude",
    "-a": "array",
    "-M": "clusters",
}
A_NODE: Final = ("ntasks-per-node", "gpus-per-node", "gres")
OF_HYDRA: Final = ("--cfg", "-c")  # -p is a part of the config beside it
GLUED: Final = re.compile(rf"({'|'.join(SHORT)})(?!=)(.+)")  # -N2
CLOCK: Final = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+)(?::(?P<minutes>\d+))?(?::(?P<seconds>\d+))?")


def refuse_flags_of_sbatch(
    words: Sequence[str], *, known: Sequence[str], is_other: Callable[[str], bool] = lambda _: False
) -> None:
    """Refuse sbatch's flags and those near them, but for flags `known` to the launch itself, or near to one of these.

    `is_other` tells a flag of another program than sbatch by its name.

    Raises:
        ConfigurationError: There are some; each has its words here.
    """
    answers: list[tuple[str, str, str]] = []  # as typed, the words to type, else the reason why there are none
    is_shown = any(word.partition("=")[0] in OF_HYDRA for word in words)
    for index, word in enumerate(words):
        glued = GLUED.fullmatch(word)
        flag, equals, value = (glued[1], "=", glued[2]) if glued else word.partition("=")
        name = SHORT.get(flag) or flag.removeprefix("--")
        is_sbatch_s = flag in SHORT or (flag.startswith("--") and (name in OWN or name in PASSED))
        if flag.startswith("--") and not is_sbatch_s and not is_other(name):
            name = long_option_near(name, [each.removeprefix("--") for each in known]) or name
            is_sbatch_s = name in OWN or name in PASSED
        if flag in known or not is_sbatch_s or (flag == "-p" and is_shown):
            continue
        following = words[index + 1 : index + 2]
        typed = word
        if not equals and name not in SWITCHES and following and not re.search(r"=|^-", following[0]):
            value, typed = following[0], f"{word} {following[0]}"
        is_mistyped = flag not in SHORT and name != flag.removeprefix("--")
        answers.append((f"{typed} (--{name})" if is_mistyped else typed, *_answer(name, value)))
    if not answers:
        return
    meant = " ".join(dict.fromkeys(shlex.quote(word) for _, word, _ in answers if word))
    lines = [f"{typed}: {word or reason}" for typed, word, reason in answers]
    if len(answers) == 1:
        typed, word, reason = answers[0]
        raise ConfigurationError(f"{typed} is sbatch's; {f'write {meant}' if word else reason}.")
    written = f"; write {meant}." if meant else "."
    raise ConfigurationError("\n  ".join([f"{len(answers)} flags are sbatch's{written}", *lines]))


def seconds_of_clock(text: str) -> int | None:
    """Return the seconds of HH:MM:SS, D-HH or D-HH:MM:SS, as sbatch writes a limit; None for another text."""
    found = CLOCK.fullmatch(text)
    if found is None or not (found["days"] or found["seconds"]):  # MM:SS may be read as HH:MM
        return None
    days, hours, minutes, seconds = (int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _answer(name: str, value: str) -> tuple[str, str]:
    """Return the word to type, or "" and the reason."""
    if name == "job-name" and value:
        return f"run.name={value}", ""
    if name == "nodes" and value.isdecimal():
        return f"cluster.num_nodes={value}", ""
    if name in A_NODE and (number := re.fullmatch(r"(?:gpu:(?:\w+:)?)?(\d+)", value)):
        return f"cluster.devices_per_node={number[1]}", ""
    own = OWN.get(name)
    if own is None:
        return f"--sbatch={name}" + (f"={value}" if value else "" if name in SWITCHES else "=VALUE"), ""
    if own.startswith("--"):
        return f"{own}={value or 'VALUE'}", ""
    return "", f"{own} say it" if own else "lmtrain sets it, so leave it out"
