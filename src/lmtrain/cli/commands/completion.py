"""`lmtrain completion bash|zsh|fish`: Tab completion for `lmtrain` and `python train.py`, as a script for the shell."""

import gc
import importlib
import io
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from typing import Final

from lmtrain.cli.command_table import VERBS
from lmtrain.cli.completion import completions
from lmtrain.errors import EXIT_DONE, LMTRAIN_ERRORS, ConfigurationError
from lmtrain.run.compose.paths import conf_folder

USAGE: Final = """\
{program} bash|zsh|fish: print a script for Tab after
`lmtrain` and `python train.py`. For this shell, or for all from ~/.bashrc,
~/.zshrc or ~/.config/fish/config.fish:

  eval "$({program} bash)"
  eval "$({program} zsh)"
  {program} fish | source
"""
# Bash splits words at "=" and ":" too: the beginning of an answer up to the last of them is on the line already.
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

ZSH: Final = r"""
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_lmtrain() {
    local -a typed answers open closed
    typed=("${(@)words[1,CURRENT-1]}" "$PREFIX")
    case "${typed[1]:t}" in
        python*)
            [[ "${typed[2]:t}" == train.py && $CURRENT -gt 2 ]] || { _default; return }
            typed=("${typed[1]}" -m lmtrain.cli completion words train "${(@)typed[3,-1]}") ;;
        *) typed=("${typed[1]}" completion words "${(@)typed[2,-1]}") ;;
    esac
    answers=(${(f)"$("${typed[@]}" 2> /dev/null)"})
    (( $#answers )) || { _default; return }
    open=(${(M)answers:#*[=./]}) closed=(${answers:#*[=./]})
    (( $#open )) && compadd -Q -S '' -- $open
    (( $#closed )) && compadd -Q -- $closed
}
compdef _lmtrain lmtrain python python3
"""
FISH: Final = r"""
function __lmtrain_answers
    set -l typed (commandline -opc) (commandline -ct)
    if string match -qr '^python' -- (basename $typed[1])
        test (count $typed) -gt 2; and test (basename $typed[2]) = train.py; or return
        $typed[1] -m lmtrain.cli completion words train $typed[3..-1] 2> /dev/null
    else
        $typed[1] completion words $typed[2..-1] 2> /dev/null
    end
end
for program in lmtrain python python3
    complete -c $program -a '(__lmtrain_answers)'
end
"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(words: list[str], *, program: str = "lmtrain completion") -> int:
    """Print the script of a shell; `words ...` prints the last word's completions, one per line, for the script.

    Raises:
        ConfigurationError: The shell is not supported.
    """
    match words:
        case ["words", *typed]:
            gc.disable()  # a third of a verb's import; the process ends with its answer
            print("\n".join(completions(typed, verbs=VERBS, conf=conf_folder(), page=page)))
        case [shell] if shell in SCRIPTS:
            print(SCRIPTS[shell].strip())
        case ["-h" | "--help", *_]:
            print(USAGE.format(program=program))
        case _:
            said = " ".join([program, *words])
            raise ConfigurationError(f"{said}: the shell must be one of {', '.join(SCRIPTS)}; write {program} bash.")
    return EXIT_DONE


def page(words: Sequence[str]) -> str:
    """Return the `--help` of a verb, or of its first word; "" of another word."""
    return _page(tuple(words))


@cache
def _page(words: tuple[str, ...]) -> str:
    verb, *first = words
    module, _, function = VERBS[verb][0].partition(":")
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit, *LMTRAIN_ERRORS):
        getattr(importlib.import_module(module), function)([*first, "--help"], program=f"lmtrain {verb}")
    return printed.getvalue()
