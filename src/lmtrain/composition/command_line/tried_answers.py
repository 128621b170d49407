"""Answers to the words of another program, composed before they are printed: with the batch that they take together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.quantities import parse_whole
from lmtrain.composition.command_line.arguments import parse_arguments
from lmtrain.composition.command_line.batch_elsewhere import CONTEXT, DEVICES, MICRO, NODES, TOKENS
from lmtrain.composition.command_line.compose import for_each_config
from lmtrain.composition.command_line.equivalents import Together, answered_together
from lmtrain.composition.command_line.flags import MULTIRUN
from lmtrain.composition.command_line.meant import ForeignWords
from lmtrain.composition.command_line.paths import is_key_of_training, key_of, without
from lmtrain.composition.command_line.trials import single
from lmtrain.errors import ConfigurationError

# Keys whose values are to divide one another.
DIVIDED: Final = ("batch.", "trainer.", "cluster.", "strategy")
# Where weights come from: perhaps a folder that is still to be made.
STARTS: Final = ("init_from", "resume")
SHOWN: Final = ("--cfg", "-c", "--resolve", "job", "all", "hydra")  # nothing is printed here


def tried_refusal(foreign: ForeignWords) -> ConfigurationError:
    """Return the refusal of such words with the nearest batch that divides, and another mistake beside them."""
    return foreign.refusal(tried(answered_together([each.meant for each in foreign.words], foreign.own), foreign.own))


def tried(answer: Together, own: Sequence[str]) -> Together:
    """Compose the words of an answer beside the `own` ones of a command, and return it with a line about the result.

    A word of an option that another word does not choose is left out.
    """
    words = answer.words
    if len(words) == 1 and not own and not words[0].startswith(DIVIDED):
        return answer
    try:
        tokens = _tokens_that_divide(_composed([*own, *words]))
    except ConfigurationError as wrong:
        told = str(wrong).removesuffix(".")
        lost = next((word for word in words if told.startswith(f"{word}: there is no key")), None)
        if lost is None or len(words) == 1:
            return replace(answer, notes=(*answer.notes, told))
        note = f"{lost} is left out: {told.removeprefix(f'{lost}: ')}"
        fewer = replace(answer, words=tuple(word for word in words if word != lost), notes=(*answer.notes, note))
        return tried(fewer, own)
    if tokens is None:
        return answer
    fitting = f"{TOKENS}={tokens}"
    notes = (*answer.notes, f"{fitting}: whole passes of every device")
    return replace(answer, words=(*without(words, [TOKENS]), fitting), notes=notes)


def _is_of_another_verb(word: str) -> bool:
    """Tell a key of a config beside training's, as make.folder."""
    head = key_of(word).split(".")[0]
    return "=" in word and not word.startswith("-") and not head.startswith("hydra") and not is_key_of_training(head)


def _composed(words: Sequence[str]) -> Mapping[str, Any]:
    """Return the config of the words, of a sweep the first one, without weights that may still be to come."""
    found: list[dict[str, Any]] = []
    of_training = [word for word in without(words, STARTS) if word not in SHOWN and not _is_of_another_verb(word)]
    arguments = parse_arguments(of_training)
    flags = [flag for flag in arguments.flags if flag not in MULTIRUN]
    one = replace(arguments, overrides=single(arguments.overrides), flags=flags)
    for_each_config(lambda config, _: found.append(config), one, config_name="train")
    return found[0]


def _tokens_that_divide(config: Mapping[str, Any]) -> int | None:
    """Return the nearest tokens of a step in whole passes, None where they are."""
    batch, trainer, strategy = config["batch"], config["trainer"], config["strategy"]
    sizes = {key: parse_whole(batch[key.partition(".")[2]], key) for key in (CONTEXT, TOKENS)}
    micro = batch["micro_batch_sequences"]
    micro = parse_whole(micro, MICRO) if micro not in (None, "auto") else None
    ranks = parse_whole(trainer["devices"], DEVICES) * parse_whole(trainer["num_nodes"], NODES)
    shared = int(strategy.get("tensor_size", 1)) * int(strategy.get("num_stages", 1))
    asked = Batch(context_tokens=sizes[CONTEXT], tokens_per_step=sizes[TOKENS], micro_batch_sequences=micro)
    try:
        plan_batches(asked, num_ranks=ranks // shared)
    except ConfigurationError:
        unit = (micro or 1) * sizes[CONTEXT] * (ranks // shared)
        return max(1, round(sizes[TOKENS] / unit)) * unit
    return None
