"""Answers to the words of another program, tried before they are printed: with the nearest values that fit together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lmtrain.accounting.batches import plan_batches
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import for_each_config
from lmtrain.run.compose.flags import MULTIRUN, parse_flags
from lmtrain.run.compose.foreign.batches import TOKENS
from lmtrain.run.compose.foreign.equivalents import NO_VALUE, Together, answered_together
from lmtrain.run.compose.meant import CutValue, ForeignWords, MeantWord, is_known_head
from lmtrain.run.compose.paths import is_key_of_training, key_of, without
from lmtrain.run.compose.trials import single
from lmtrain.run.gate import check
from lmtrain.run.run_config import RunConfig, read_config
from lmtrain.run.validators.given import require_given

# Where weights come from: perhaps a folder that is still to be made.
STARTS: Final = ("init_from", "resume")
OF_A_SEARCH: Final = ("sweep", "hydra", "hydra/sweeper", "hydra/launcher")
MOST_MENDED: Final = 4  # values of one answer
NEAREST: Final = "nearest valid: "
OTHER: Final = re.compile(r"([\w.]+)=(\d[\d.]*(?: or \d[\d.]*)*)")
ONE: Final = re.compile(r"([\w.]+)=.*" + NEAREST + r"(-?\d[\d.e+-]*)\.?$")


def tried_meant(found: MeantWord) -> ConfigurationError:
    """Return the refusal of a word with an answer that composes."""
    if isinstance(found, CutValue):
        return _tried_cut(found)
    return tried_refusal(found.foreign) if found.foreign else found


def _tried_cut(cut: CutValue) -> ConfigurationError:
    """Return the refusal of a value cut at a space, without its whole where only that does not compose."""
    is_answer = is_known_head(key_of(cut.last)) and _is_possible([*cut.own, *cut.whole], cut.whole)
    if not is_answer and _is_possible(cut.own, ()):
        return ConfigurationError(
            f"{cut.rest} stands alone behind {cut.last}: a word is KEY=VALUE or GROUP=OPTION; `--help` lists both."
        )
    return cut


def _is_possible(words: Sequence[str], tried_words: Sequence[str]) -> bool:
    try:
        _require_possible(_composed(words), tried_words)
    except (DataError, EnvironmentProblem):  # of this machine
        return True
    except ConfigurationError:
        return False
    return True


def tried_refusal(foreign: ForeignWords) -> ConfigurationError:
    """Return the refusal of such words with the nearest values that fit, and another mistake beside them."""
    return foreign.refusal(tried(answered_together([each.meant for each in foreign.words], foreign.own), foreign.own))


def tried(answer: Together, own: Sequence[str], *, num_mended: int = 0) -> Together:
    """Try the words of an answer beside the `own` ones of a command, and return it with a line about the result.

    A word of an option that another word does not choose is left out, and a value becomes the nearest that fits.
    """
    words = answer.words
    try:
        config = _composed([*own, *words])
        if (tokens := _tokens_that_divide(config)) is not None:
            fitting = f"{TOKENS}={tokens}"
            notes = (*answer.notes, f"{fitting}: whole passes of every device")
            answer = replace(answer, words=(*without(words, [TOKENS]), fitting), notes=notes)
            config = _composed([*own, *answer.words])
        if not any(word.endswith(f"={NO_VALUE}") for word in answer.words):
            _require_possible(config, answer.words)
    except (DataError, EnvironmentProblem):  # of this machine, perhaps not that of the run
        return answer
    except ConfigurationError as wrong:
        told = str(wrong).removesuffix(".")
        lost = next((word for word in words if told.startswith(f"{word}: there is no key")), None)
        if lost is not None and len(words) > 1:
            note = f"{lost} is left out: {told.removeprefix(f'{lost}: ')}"
            fewer = replace(answer, words=tuple(word for word in words if word != lost), notes=(*answer.notes, note))
            return tried(fewer, own)
        noted = replace(answer, notes=(*answer.notes, told))
        lacking = (*answer.words, *wrong.lacking) if wrong.lacking else None
        mended = (lacking or _mended(told, answer.words, own)) if num_mended < MOST_MENDED else None
        return tried(replace(noted, words=mended), own, num_mended=num_mended + 1) if mended else noted
    return answer


def _mended(told: str, words: Sequence[str], own: Sequence[str]) -> tuple[str, ...] | None:
    """Return an answer's words with the nearest value of a refusal, None where it names none of them.

    A budget that nobody typed is added, whose default is no wish of theirs.
    """
    if one := ONE.fullmatch(told):
        others = [(one[1], [one[2]])]
    else:
        others = [(key, values.split(" or ")) for key, values in OTHER.findall(told.partition(NEAREST)[2])]
    typed = {key_of(word): word.partition("=")[2] for word in words}
    has_budget = any(key_of(word).partition(".")[0] == "budget" for word in (*words, *own))
    if not has_budget and (more := next(((key, values) for key, values in others if key.startswith("budget.")), None)):
        return (*words, f"{more[0]}={more[1][0]}")
    for key, values in others:
        if key in typed:
            nearest = min(values, key=lambda value, key=key: _distance(value, typed[key]))
            return tuple(f"{key}={nearest}" if key_of(word) == key else word for word in words)
    return None


def _distance(value: str, typed: str) -> float:
    try:
        return abs(float(value) - parse_quantity(typed, typed))
    except ConfigurationError:
        return 0.0


def _is_of_another_verb(word: str) -> bool:
    """Tell a key of a config beside training's, as make.folder."""
    head = key_of(word).split(".")[0]
    return "=" in word and not word.startswith("-") and not head.startswith("hydra") and not is_key_of_training(head)


def _composed(words: Sequence[str]) -> RunConfig:
    """Return the config of the words, of a sweep the first one, without weights that may still be to come."""
    found: list[dict[str, Any]] = []
    kept = without(words, (*STARTS, *OF_A_SEARCH))
    arguments = parse_arguments([word for word in kept if not _is_of_another_verb(word)])
    own = parse_flags([flag for flag in arguments.flags if flag not in MULTIRUN]).config_dir
    flags = [] if own is None else ["--config-dir", own]  # nothing is printed here, nor swept
    one = replace(arguments, overrides=single(arguments.overrides), flags=flags)

    def keep(composed: dict[str, Any], _: object) -> None:
        found.append(composed)

    for_each_config(keep, one, config_name="train")
    return _read(found[0], allowed=arguments.allowed_targets)


def _read(composed: Mapping[str, Any], *, allowed: Sequence[str]) -> RunConfig:
    require_given(composed)
    return read_config(composed, allowed=allowed)


def _require_possible(config: RunConfig, words: Sequence[str]) -> None:
    """Refuse what `lmtrain plan` and `train` would of these words, as far as known without a model.

    Raises:
        ConfigurationError: The first such value.
    """
    check(config.values, allowed=config.allowed, typed=words, place="paper")


def _tokens_that_divide(config: RunConfig) -> int | None:
    """Return the nearest tokens of a step in whole passes, None where they are."""
    batch, spread = config.batch, config.spread
    micro = batch.micro_batch_sequences if isinstance(batch.micro_batch_sequences, int) else None
    num_readers = config.num_ranks // (spread.tensor_ranks * spread.context_ranks * spread.pipeline.num_stages)
    try:
        plan_batches(replace(batch, micro_batch_sequences=micro), num_ranks=num_readers)
    except ConfigurationError:
        unit = (micro or 1) * batch.context_tokens * num_readers
        if unit < 1:
            raise
        return max(1, round(batch.tokens_per_step / unit)) * unit
    return None
