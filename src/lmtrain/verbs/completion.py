"""`lmtrain completion bash`: Tab completion for `lmtrain` and `python train.py`, as a script for the shell."""

from typing import Final

from lmtrain.composition.command_line.completions import completions
from lmtrain.composition.command_line.paths import conf_folder
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.verbs.table import VERBS

USAGE: Final = """\
{program} bash: print a script that completes words after `lmtrain` and
`python train.py` with Tab. For this shell, or from ~/.bashrc on for all:

  eval "$({program} bash)"
"""
# Bash parts words at "=" and ":" too, so that an answer's beginning up to the last of them is already on the line.
BASH: Final = r"""
_lmtrain() {
    local line="${COMP_LINE:0:COMP_POINT}" current words typed
    current="${line##*[[:space:]]}"
    read -ra words <<< "$line"
    [[ -n $current ]] || words+=("")
    case "${words[0]##*/}" in
        python*)
            [[ ${words[1]##*/} == train.py && ${#words[@]} -gt 2 ]] || return
            words=("${words[0]}" -m lmtrain.cli completion words train "${words[@]:2}") ;;
        *) words=("${words[0]}" completion words "${words[@]:1}") ;;
    esac
    mapfile -t COMPREPLY < <("${words[@]}" 2> /dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace 2> /dev/null
    typed="${current%"${current##*["=:"]}"}"
    COMPREPLY=("${COMPREPLY[@]#"$typed"}")
}
complete -o bashdefault -o default -F _lmtrain lmtrain python python3
"""


def completion(words: list[str], *, program: str = "lmtrain completion") -> int:
    """Print the script of a shell; `words ...` answers it with what the last word can become, one a line.

    Raises:
        ConfigurationError: Another shell, or none.
    """
    match words:
        case ["words", *typed]:
            print("\n".join(completions(typed, verbs=VERBS, conf=conf_folder())))
        case ["bash"]:
            print(BASH.strip())
        case ["-h" | "--help", *_]:
            print(USAGE.format(program=program))
        case _:
            raise ConfigurationError(f"{' '.join([program, *words])}: shells are bash; nearest valid: {program} bash.")
    return EXIT_DONE
