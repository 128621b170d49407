"""The words for settings of other programs that take arithmetic, or a look at this machine's files."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.foreign.batches import TOKENS, TypedBatch, batch_equivalent, shared_number
from lmtrain.run.compose.foreign.clusters import devices_of_all_nodes, devices_of_some
from lmtrain.run.compose.foreign.sources import SETTINGS, place_of_data
from lmtrain.run.compose.foreign.table import (
    LAYERS,
    VOCAB_SIZES,
    Equivalent,
    filled,
    needless,
    options_of,
    quoted,
    settings_elsewhere,
    values_of,
)
from lmtrain.run.compose.foreign.times import TIMES
from lmtrain.run.compose.group_options import file_values
from lmtrain.run.compose.help import default_options
from lmtrain.run.compose.meant_options import TIKTOKEN, option_meant
from lmtrain.run.compose.model_knob import by_its_knob
from lmtrain.run.compose.model_proportions import FEED_FORWARD, WIDTH, feed_forward_at
from lmtrain.run.compose.paths import conf_folder
from lmtrain.storage import foreign_json

BASE: Final = "runs/base"
LONGEST_TIMEOUT: Final = 1_000_000  # seconds
HEADS: Final = "model.num_heads"
HEAD_WIDTH: Final = 64
LIKELY_SIZE: Final = 32_000  # of a tokenizer unknown here
RATE: Final = "optimizer.lr"
WITH_MOMENTUM: Final = "sgd_momentum"
CLASS: Final = re.compile(r"(?i)\w*(?:tokenizer(?:fast)?|ForCausalLM|LMHeadModel)")


def special_equivalent(kind: str, name: str, value: str, words: Sequence[str]) -> Equivalent:
    """Return the equivalent of a setting of such a kind, beside the other words of its command."""
    typed = {**values_of(words), name: value}
    if kind in PLACES:
        return place_of(name, value, words)
    if kind in CONVERSIONS:
        try:
            return CONVERSIONS[kind](value, typed)
        except (ConfigurationError, ValueError):
            return Equivalent((), f"{value} is no such value")
    return batch_equivalent(kind, name, typed)


def _samples(value: str, typed: Mapping[str, str]) -> Equivalent:
    context = TypedBatch(typed).context
    return Equivalent(
        (f"budget.tokens={int(parse_quantity(value, value)) * context}",), f"sequences of {context} tokens"
    )


def _warmup_samples(value: str, typed: Mapping[str, str]) -> Equivalent:
    tokens = int(parse_quantity(value, value)) * TypedBatch(typed).context
    return Equivalent((f"schedule.warmup_tokens={tokens}" if tokens else "schedule.warmup_fraction=0",))


def _timeout(value: str, _: Mapping[str, str]) -> Equivalent:
    return Equivalent((f"strategy.timeout_seconds={min(int(value), LONGEST_TIMEOUT)}",))


def _validation_batches(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return the tokens of a validation; a share of the batches, as Lightning takes below 1, is no setting."""
    number = float(parse_quantity(value, value))
    if not number.is_integer() or value.endswith(".0"):
        return needless("a validation reads all of the held-out text, or callbacks.validation.max_tokens")
    batch = TypedBatch(typed)
    of_one = (batch.of_a_pass or 0) * batch.context or batch.tokens or batch.number(TOKENS) or shared_number(TOKENS)
    return Equivalent(
        (f"callbacks.validation.max_tokens={max(1, int(number)) * of_one}",), f"{value} x {of_one} tokens"
    )


def _smallest_lr(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return the last learning rate as a fraction of the peak."""
    names = (RATE, *settings_elsewhere().names[f"{RATE}={{}}"])
    peak = next((typed[name] for name in names if name in typed), None) or _lr_of(_optimizer_of(typed))
    fraction = parse_quantity(value, value) / parse_quantity(peak, RATE)
    return Equivalent((f"schedule.final_fraction={fraction:.4g}",), f"of the peak, {RATE}={peak}")


def _optimizer_of(typed: Mapping[str, str]) -> str:
    option = next((typed[name] for name in ("optimizer", "optim", "optimizer.name") if name in typed), "")
    known = options_of("optimizer")
    default = default_options(conf_folder() / "train.yaml")["optimizer"]
    return option if option in known else option_meant("optimizer", option, known) or default


def _lr_of(optimizer: str) -> str:
    values = file_values(f"optimizer={optimizer}")
    base = [each for each in values.get("defaults", []) if isinstance(each, str)]
    return str(values["lr"]) if "lr" in values else _lr_of(base[0])


def _held_out_share(value: str, _: Mapping[str, str]) -> Equivalent:
    """Return the share of the documents to hold out; a number of examples is no setting."""
    share = float(parse_quantity(value, value))
    if share >= 1:
        return needless("held out is a share of the documents, data.folder.validation_fraction=0.01 one in a hundred")
    return Equivalent((f"data.folder.validation_fraction={value}",))


def _betas(value: str, _: Mapping[str, str]) -> Equivalent:
    first, second = re.split(r"[,\s]+", value.strip("[]() "))
    return Equivalent((f"optimizer.beta1={first}", f"optimizer.beta2={second}"))


def _momentum(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return the optimizer's own fading sum of gradients; plain gradient descent has one by another name."""
    values = file_values(f"optimizer={_optimizer_of(typed)}")
    key = next((key for key in ("momentum", "beta1") if key in values), None)
    return (
        Equivalent((f"optimizer.{key}={value}",)) if key else filled(settings_elsewhere().words[WITH_MOMENTUM], value)
    )


def _layers(value: str, _: Mapping[str, str]) -> Equivalent:
    """Return LoRA's layers by their names here, all of them without a word."""
    named = [LAYERS.get(name, name) for name in re.split(r"[,\s]+", value.strip("[]() "))]
    if any(name.startswith("all") for name in named):
        return filled("adapter=lora ?init_from=runs/base # every linear layer of the blocks is adapted", value)
    targets = f"[{','.join(dict.fromkeys(named))}]"
    return filled("adapter=lora adapter.targets={} ?init_from=runs/base", targets)


def _by_its_knob(size: str, value: str, typed: Mapping[str, str]) -> Equivalent | None:
    """Return the word of a model with one number for all its sizes, None for another model."""
    option = _model_of(typed)
    node = file_values(f"model={option}") if option in options_of("model") else {}
    word = by_its_knob(node, size, value)
    return Equivalent((word,), f"the number that sets the sizes of model={option}") if word else None


def _model_of(typed: Mapping[str, str]) -> str:
    return typed.get("model") or default_options(conf_folder() / "train.yaml")["model"]


def _num_layers(value: str, typed: Mapping[str, str]) -> Equivalent:
    return _by_its_knob("num_layers", value, typed) or Equivalent((f"model.num_layers={value}",))


def _width(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return a width, with a feed-forward in the model's proportion where none is typed."""
    if knob := _by_its_knob("width", value, typed):
        return knob
    option = _model_of(typed)
    of_others = settings_elsewhere().names[f"{FEED_FORWARD}={{}}"]
    found = feed_forward_at(option, int(value)) if not {FEED_FORWARD, *of_others} & {*typed} else None
    return Equivalent((f"{WIDTH}={value}", *([f"{FEED_FORWARD}={found}"] if found else [])))


def _heads(value: str, typed: Mapping[str, str]) -> Equivalent:
    """Return heads, and a width of so many where they do not divide the model's."""
    if knob := _by_its_knob("num_heads", value, typed):
        return knob
    widths = (WIDTH, *settings_elsewhere().names["width"])
    if any(name in typed for name in widths):
        return Equivalent((f"{HEADS}={value}",))
    option = _model_of(typed)
    width = file_values(f"model={option}").get("width") if option in options_of("model") else None
    if not isinstance(width, int) or width % (2 * int(value)) == 0:
        return Equivalent((f"{HEADS}={value}",))
    wide = _width(str(HEAD_WIDTH * int(value)), typed)
    return Equivalent((f"{HEADS}={value}", *wide.words), f"{HEAD_WIDTH} numbers a head")


def _head_width(value: str, typed: Mapping[str, str]) -> Equivalent:
    if "depth" in typed:
        return needless("heads of a depth have a width of their own")
    return Equivalent((f"model.head_width={value}",))


CONVERSIONS: Final[Mapping[str, Callable[[str, Mapping[str, str]], Equivalent]]] = {
    "samples": _samples,
    "warmup_samples": _warmup_samples,
    "timeouts": _timeout,
    "validation_batches": _validation_batches,
    "smallest_lr": _smallest_lr,
    "betas": _betas,
    "held_out_shares": _held_out_share,
    "momenta": _momentum,
    "adapted_layers": _layers,
    "width": _width,
    "layers": _num_layers,
    "heads": _heads,
    "head_widths": _head_width,
    **SETTINGS,
    **TIMES,
    "devices_of_all_nodes": devices_of_all_nodes,
    "devices_of_some": devices_of_some,
}


def place_of(name: str, value: str, words: Sequence[str]) -> Equivalent:
    """Return the words for a text, weights, a model, a tokenizer or a folder, by what is at that place."""
    return PLACES[settings_elsewhere().special[name]](value, words)


def _folder(value: str, words: Sequence[str]) -> Equivalent:
    """Return a run's folder and name; where a name is typed too, the folder of runs."""
    if {*settings_elsewhere().names["run.name={}"], "run.name"} & {*values_of(words)}:
        return Equivalent((f"run.root={value.rstrip('/')}",))
    parent, _, last = value.rstrip("/").rpartition("/")
    return Equivalent((*([f"run.root={parent}"] if parent else []), f"run.name={last or 'first'}"))


def _tokenizer(value: str, words: Sequence[str]) -> Equivalent:
    """Return a tokenizer of a folder or the hub, with its size, which a model has to be told."""
    if CLASS.fullmatch(value):
        known = TIKTOKEN.get(value.lower())
        if known is None:
            return needless("a tokenizer is a folder or a name on the hub, of any class")
        value = known
    is_typed = "tokenizer.vocab_size" in {*values_of(words)} or "vocab_size" in values_of(words)
    if Path(value).exists():
        words_there, size = ("tokenizer=folder", f"tokenizer.path={value}"), _size_of(Path(value))
    else:
        name = TIKTOKEN.get(value.lower(), value)
        words_there, size = ("tokenizer=huggingface", f"tokenizer.name={name}"), VOCAB_SIZES.get(name)
    note = "" if size or is_typed else "a wrong tokenizer.vocab_size is answered with the right one"
    return Equivalent(words_there, note, (f"tokenizer.vocab_size={size or LIKELY_SIZE}",))


def _size_of(path: Path) -> int | None:
    """Count the entries in the tokenizer.json of a folder, None without one."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        content = foreign_json.read(file)
        return len({*content["model"]["vocab"], *(each["content"] for each in content.get("added_tokens", []))})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _weights(value: str, _: Sequence[str]) -> Equivalent:
    if value in options_of("model"):
        return Equivalent((f"model={value}",))
    if Path(value, "config.json").exists():
        return Equivalent((f"init_from={BASE}",), f"after `lmtrain import hf {quoted(value)} {BASE}`")
    if Path(value, "lmtrain.json").exists() or value.startswith("runs/"):
        return Equivalent((f"init_from={value}",))
    after = f"after `hf download {quoted(value)} --local-dir base` and `lmtrain import hf base {BASE}`"
    is_of_hub = re.fullmatch(r"[\w-][\w.-]*(?:/[\w.-]+)?", value) is not None
    known = option_meant("model", value, options_of("model"))
    return Equivalent(
        (f"init_from={BASE}",),
        (after if is_of_hub else f"after `lmtrain import hf FOLDER {BASE}`")
        + (f"; model={known} starts from random weights" if known else ""),
    )


def _architecture(value: str, words: Sequence[str]) -> Equivalent:
    """Return a model to train from nothing; torchtitan's has its size in a word of its own."""
    typed = values_of(words)
    if CLASS.fullmatch(value):
        return needless("the model's option, or the folder of its weights, says its kind")
    both = [typed[key] for key in ("model.name", "model.flavor") if key in typed]
    spelling = "_".join(both) if value in both and len(both) > 1 else value
    found = option_meant("model", spelling, options_of("model")) or option_meant("model", value, options_of("model"))
    if found:
        return Equivalent((f"model={found}",))
    from lmtrain.run.compose.unknown_words import unknown_option  # OmegaConf: only to refuse

    return Equivalent((), unknown_option("model", value, options_of("model")).rstrip("."))


PLACES: Final[Mapping[str, Callable[[str, Sequence[str]], Equivalent]]] = {
    "folders": _folder,
    "tokenizers": _tokenizer,
    "weights": _weights,
    "architectures": _architecture,
    "data": place_of_data,
}
