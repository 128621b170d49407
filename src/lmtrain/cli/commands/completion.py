"""`lmtrain completion bash|zsh|fish`: Tab completion for `lmtrain`, as a script for the shell.

The script asks `lmtrain completion words ...`, which answers from the YAML files and the verbs' own `--help`.
"""

import gc
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Final

from lmtrain.cli.command_table import VERBS
from lmtrain.cli.main import find_verb
from lmtrain.errors import EXIT_DONE, LMTRAIN_ERRORS, ConfigurationError, suggest
from lmtrain.run.compose.option_files import default_options, option_rows, shared_keys
from lmtrain.run.compose.paths import conf_folder, option_names

USAGE: Final = """\
{program} bash|zsh|fish: print a script for Tab after
`lmtrain`. For this shell, or for all from ~/.bashrc, ~/.zshrc or
~/.config/fish/config.fish:

  eval "$({program} bash)"
  eval "$({program} zsh)"
  {program} fish | source
"""
# Bash splits words at "=" and ":" too: the beginning of an answer up to the last of them is on the line already.
BASH: Final = r"""
_lmtrain() {
    local line="${COMP_LINE:0:COMP_POINT}" current words
    current="${line##*[[:space:]]}"
    read -ra words <<< "$line"
    [[ -n $current ]] || words+=("")
    mapfile -t COMPREPLY < <("${words[0]}" completion words "${words[@]:1}" 2> /dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace 2> /dev/null
    current="${current%"${current##*["=:"]}"}"
    COMPREPLY=("${COMPREPLY[@]#"$current"}")
}
complete -o bashdefault -o default -F _lmtrain lmtrain
"""
ZSH: Final = r"""
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_lmtrain() {
    local -a answers
    answers=(${(f)"$("${words[1]}" completion words "${(@)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)"})
    (( $#answers )) || { _default; return }
    compadd -Q -S '' -- ${(M)answers:#*[=./]}
    compadd -Q -- ${answers:#*[=./]}
}
compdef _lmtrain lmtrain
"""
FISH: Final = """
complete -c lmtrain -a '(lmtrain completion words (commandline -opc)[2..-1] (commandline -ct) 2> /dev/null)'
"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}

# The entry configs, with the verbs that take their overrides.
CONFIGS: Final = {
    **dict.fromkeys(("train", "plan", "simulate", "bench", "audit", "doctor", "parity", "launch"), "train"),
    "pipeline": "pipeline",
    "prepare": "prepare",
    "tokenizer": "make_tokenizer",
}
FLAG: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# First words of a verb: of its usage, as a|b; or of its examples, and of argparse's list of parts
FIRST_WORDS: Final = (
    r"^(?:usage: )?{program} (?:\[-h\] )?([a-z0-9]+(?:\|[a-z0-9]+)+)"
    r"|^  (?:{program}|  ) ?([a-z0-9]+)(?: |$)"
)
A_RUN: Final = re.compile(r"\bruns/|\ba run\b")
RUN_KEYS: Final = {"run.name": "", "init_from": "runs/", "resume": "runs/"}


def completion(words: list[str], *, program: str = "lmtrain completion") -> int:
    """Print the script of a shell; `words ...` prints the last word's completions, one per line, for the script."""
    match words:
        case ["words", *typed]:
            gc.disable()  # a third of a verb's import; the process ends with its answer
            print("\n".join(completions(typed)))
        case [shell] if shell in SCRIPTS:
            print(SCRIPTS[shell].strip())
        case ["-h" | "--help", *_]:
            print(USAGE.format(program=program))
        case _:
            said = " ".join([program, *words])
            near = suggest(words[0], SCRIPTS) if words else f" Did you mean {program} bash?"
            raise ConfigurationError(f"{said}: the shell must be one of {', '.join(SCRIPTS)}.{near}")
    return EXIT_DONE


def completions(words: Sequence[str], *, runs: Path = Path("runs")) -> list[str]:
    """Return the completions of the last word; the first word is the verb."""
    *before, current = words or [""]
    if not before:
        found = [*VERBS, "--help", "--version"]
    elif before[0] not in VERBS:
        found = []
    elif current.startswith("-"):
        found = ["--help", *FLAG.findall(re.sub("`[^`]*`", "", page(*before[:2])))]  # quoted: of other commands
    elif len(before) == 1 and "=" not in current and (first := _first_words(before[0])):
        found = first
    elif before[0] in CONFIGS:
        found = _overrides(before[1:], current, config=CONFIGS[before[0]], runs=runs)
        if len(before) == 1 and f"lmtrain {before[0]} runs/" in page(before[0]):  # an example: it takes a run too
            found += [f"{runs}/{name}" for name in _runs(runs)]
    else:
        found = [f"{runs}/{name}" for name in _runs(runs)] if A_RUN.search(page(*before[:2])) else []
    return sorted({word for word in found if word.startswith(current)})


@cache
def page(verb: str, part: str = "") -> str:
    """Return the `--help` of a verb, or of its part, where the word is one."""
    words = [part] if part and part in _first_words(verb) else []
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit, *LMTRAIN_ERRORS):
        find_verb(verb)([*words, "--help"], program=f"lmtrain {verb}")
    return printed.getvalue()


def _first_words(verb: str) -> list[str]:
    """Return a verb's own first words, as on its page; none where it takes others."""
    found = re.findall(FIRST_WORDS.format(program=re.escape(f"lmtrain {verb}")), page(verb), re.MULTILINE)
    return sorted({word for pair in found for words in pair for word in words.split("|") if word})


def _overrides(before: Sequence[str], current: str, *, config: str, runs: Path) -> list[str]:
    """Offer groups and keys, and after "=" the options of a group or the values of a key."""
    main = conf_folder() / f"{config}.yaml"
    groups = [group for group in default_options(main) if (conf_folder() / group).is_dir()]
    chosen = default_options(main) | dict(word.split("=", 1) for word in before if "=" in word)
    key, equals, value = current.partition("=")
    group = key.partition(".")[0]
    file = conf_folder() / group / f"{chosen.get(group, '')}.yaml"
    keys = {name: default for name, (default, _) in option_rows(file)} if file.is_file() else {}
    if not equals:
        below = [f"{key}."] if key in {*groups, "batch", "run"} else []
        shared = [name for name in shared_keys(main) if "." in key or "." not in name]
        return [*below, *(f"{name}=" for name in (*shared, *groups, *(keys if "." in key else ())))]
    if key in RUN_KEYS:
        values = ["auto", "must", "never"] if key == "resume" else []
        values += [f"{RUN_KEYS[key]}{name}" for name in _runs(runs)]
    elif key in groups:
        values = option_names(key)
    else:
        default = keys.get(key) or shared_keys(main).get(key, "")
        values = ["true", "false"] if default in ("true", "false") else [default] if "${" not in default else []
    earlier = value[: value.rfind(",") + 1]  # of the values of a sweep
    return [f"{key}={earlier}{each}" for each in values if each]


def _runs(root: Path) -> list[str]:
    """Return the folders of runs, sweeps, pipelines and imports, each known by its JSON, and of the runs below."""
    files = [*root.glob("[!.]*/*.json"), *root.glob("[!.]*/[!.]*/run.json")]
    return [str(file.parent.relative_to(root)) for file in files]
