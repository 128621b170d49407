"""The `config.json` of transformers for a model, and a model's settings from one; unsupported features are refused.

Rotary settings are written in the style of release 5 and of the releases before, and read in either.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.interop.folders import WITHOUT_EFFECT
from lmtrain.interop.foreign_config import ForeignConfig
from lmtrain.interop.hf_experts import read_experts, same_function, write_experts
from lmtrain.interop.hf_families import FAMILIES, MAMBA, Family, Recurrence, head_width, rotary_letters
from lmtrain.interop.hf_rope import read_rope, write_rope
from lmtrain.interop.model_settings import (
    MODELS,
    PARTS,
    TARGET,
    complete,
    default_of,
    node_of,
    off_default,
    plain,
)
from lmtrain.models.delta_net import GatedDelta
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.latent_attention import LatentWidths
from lmtrain.models.llama import Llama
from lmtrain.models.llama_settings import layer_windows, rotated_layers
from lmtrain.models.mamba import Mamba2
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.rope import (
    LinearRopeScaling,
    RopeScaling,
)

GPT2_ARCHITECTURE: Final = "GPT2LMHeadModel"
DEFAULTS: Final = {"gpt2": {}, **{name: family.all_defaults for name, family in FAMILIES.items()}}
# Our settings and their keys, equal in meaning: whole numbers, and others.
GPT2_COUNTS: Final = {
    "width": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "vocab_size": "vocab_size",
    "max_context_tokens": "n_positions",
}
LLAMA_COUNTS: Final = {
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "max_context_tokens": "max_position_embeddings",
}
LATENT_KEYS: Final = {
    "kv_lora_rank": "latent",
    "qk_nope_head_dim": "unrotated",
    "qk_rope_head_dim": "rotated",
    "v_head_dim": "value",
    "q_lora_rank": "query_latent",
}
MAMBA_LETTERS: Final = {"M": MAMBA.word, "*": "full_attention", "-": "mlp", "E": "moe"}
ACTIVATION_FUNCTIONS: Final = {"tanh": "gelu_new", "none": "gelu"}  # of GPT-2, by model.gelu_approximate
MOST_LAYERS: Final = 1_000_000
GPT2_SETTINGS: Final = frozenset({"feed_forward_width", "norm_eps", "gelu_approximate", "biases"})
TRAINING_ONLY: Final = frozenset(
    {"experts.load_balance_weight", "experts.router_z_weight", "num_future_tokens", "future_token_weight"}
)
# Features of a config, and the only supported value of each.
ONLY: Final[dict[str, Any]] = {
    "clip_qkv": None,
    "router_jitter_noise": 0.0,
    "use_bidirectional_attention": False,
    "is_causal": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


class NoClass(ConfigurationError):
    """No class of transformers computes a model."""


def write_config(settings: Mapping[str, Any], *, prefer: str | None = None) -> dict[str, Any]:
    """Return the config of a model's completed settings, of the class `prefer` if it computes this model.

    A class does where reading what was written for it gives the same settings.

    Raises:
        NoClass: No class of transformers computes this model; the settings in the way are named.
    """
    if MODELS[settings[TARGET]] is GPT2:
        off = {name: value for name, value in off_default(settings).items() if name not in GPT2_SETTINGS}
        if nearest := {name: default_of(settings, name) for name in off}:
            raise _no_class(off, nearest)
        return _write_gpt2(settings)
    ours, closest = _function(settings), {}
    recurrent = PARTS.get(str((settings["recurrent_layers"] or {}).get(TARGET)))
    parts = (settings["experts"] is not None, settings["latent_attention"] is not None, recurrent)
    divides = settings["width"] % settings["num_heads"] == 0
    fitting = [name for name, one in FAMILIES.items() if one.parts == parts and (divides or not one.heads_divide_width)]
    for model_type in sorted(fitting, key=lambda name: name != prefer):
        config = _write_llama(settings, model_type)
        theirs = _function(complete(read_config(config).settings))
        names = [*ours, *(name for name in theirs if name not in ours)]
        differing = {name: theirs.get(name) for name in names if not _is_same(theirs.get(name), ours.get(name))}
        if not differing:
            return config
        if not closest or len(differing) < len(closest):
            closest = differing
    raise _no_class({name: ours.get(name) for name in closest}, closest)


def _function(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings behind a model's function by dotted name, each written in one way."""
    layers = settings["num_layers"]
    windows = layer_windows(layers, window_tokens=settings["window_tokens"], pattern=settings["window_pattern"])
    letters = "".join("L" if window is None else "S" for window in windows)
    whole = {
        **settings,
        "num_kv_heads": settings["num_kv_heads"] or settings["num_heads"],
        "head_width": head_width(settings),
        "biases": sorted(settings["biases"]),
        "window_tokens": max((window or 0 for window in windows), default=0) or None,
        "window_pattern": letters if len(set(windows)) > 1 else None,
        "rotary_pattern": rotary_letters(rotated_layers(layers, settings["rotary_pattern"]), settings),
        "window_rope_base": _window_base(settings, windows),
        "recurrent_pattern": settings["recurrent_pattern"] and (settings["recurrent_pattern"] * layers)[:layers],
    }
    flat: dict[str, Any] = {}
    for name, value in whole.items():
        if isinstance(value, Mapping) and name not in WITHOUT_EFFECT:
            value = same_function(value) if name == "experts" else value
            flat |= {f"{name}.{inner}": held for inner, held in value.items()}
            value = value[TARGET]
        flat[name] = value
    dropped = {*WITHOUT_EFFECT, *TRAINING_ONLY, TARGET}
    return {name: value for name, value in flat.items() if name not in dropped}


def _window_base(settings: Mapping[str, Any], windows: Sequence[int | None]) -> float | None:
    """Return the base of layers with a window where it makes a difference."""
    base = settings["window_rope_base"]
    is_other = base != settings["rope_base"] or settings["rope_scaling"] is not None
    return base if is_other and any(windows) else None


def _is_same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, float | int):
        return math.isclose(theirs, ours, rel_tol=1e-9)
    return plain(theirs) == plain(ours)


def _no_class(off: Mapping[str, Any], nearest: Mapping[str, Any]) -> NoClass:
    changed = ", ".join(f"model.{name}={value}" for name, value in off.items())
    instead = " ".join(f"model.{name}={_word(value)}" for name, value in nearest.items())
    return NoClass(
        f"{changed}: not supported by any class of transformers with the other settings, nor by vLLM and llama.cpp; "
        f"use {instead}."
    )


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _write_gpt2(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [GPT2_ARCHITECTURE],
        "model_type": "gpt2",
        **{theirs: settings[ours] for ours, theirs in GPT2_COUNTS.items()},
        "n_ctx": settings["max_context_tokens"],
        "n_inner": settings["feed_forward_width"],
        "activation_function": ACTIVATION_FUNCTIONS[settings["gelu_approximate"]],
        "layer_norm_epsilon": settings["norm_eps"],
        "initializer_range": settings["init_std"],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        "tie_word_embeddings": True,
        "use_cache": True,
    }


def _write_llama(settings: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    family, biases = FAMILIES[model_type], settings["biases"]
    activations = {ours: theirs for theirs, ours in family.activations.items()}
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": model_type,
        **{theirs: settings[ours] for ours, theirs in LLAMA_COUNTS.items()},
        "intermediate_size": settings["feed_forward_width"],
        family.width_key: settings["feed_forward_width"],
        "num_key_value_heads": settings["num_kv_heads"] or settings["num_heads"],
        **({"head_dim": head_width(settings)} if family.has_head_width else {}),
        family.activation_key: activations.get(settings["activation"], next(iter(family.activations))),
        "initializer_range": settings["init_std"],
        family.eps_key: settings["norm_eps"],
        "tie_word_embeddings": settings["tie_embeddings"],
        **{key: biases is not None and set(places) <= set(biases) for key, places in family.biases.items()},
        "attention_dropout": 0.0,
        "use_cache": True,
        "pad_token_id": None,
        **family.only,
        **family.writes,
    }
    if family.lists_layers:
        config["layer_types"] = ["attention"] * settings["num_layers"]
    if family.recurrent is not None:
        config |= _write_recurrent(settings, family.recurrent)
    if family.latent:
        widths = settings["latent_attention"] or dict.fromkeys(LATENT_KEYS.values())
        config |= {theirs: widths[ours] for theirs, ours in LATENT_KEYS.items()}
    config |= {key.name: key.write(settings[name], settings) for name, key in family.keys.items()}
    config |= write_rope(settings, family)
    if family.experts is not None:
        config |= write_experts(settings["experts"], family.experts, settings["feed_forward_width"])
    return config | _write_windows(settings, family)


def _write_recurrent(settings: Mapping[str, Any], recurrence: Recurrence) -> dict[str, Any]:
    part, pattern, num_layers = settings["recurrent_layers"], settings["recurrent_pattern"], settings["num_layers"]
    kinds = {"R": recurrence.word, "A": "full_attention", "F": "mlp"}
    layer_types = [kinds[pattern[layer % len(pattern)]] for layer in range(num_layers)]
    config = {theirs: part.get(ours) for theirs, ours in recurrence.keys.items()}
    config[recurrence.layer_key] = layer_types
    if recurrence is MAMBA:  # for programs that do not read the list
        letters = {word: letter for letter, word in MAMBA_LETTERS.items()}
        config["hybrid_override_pattern"] = "".join(letters[kind] for kind in layer_types)
    return config


def _write_windows(settings: Mapping[str, Any], family: Family) -> dict[str, Any]:
    window = settings["window_tokens"]
    if family.windows is None:
        return {}
    switch: dict[str, Any] = {"use_sliding_window": window is not None} if family.has_window_switch else {}
    if family.windows == "all":
        return {"sliding_window": window, **switch}
    windows = layer_windows(settings["num_layers"], window_tokens=window, pattern=settings["window_pattern"])
    if family.windows == "unrotated":
        switch = {"use_sliding_window": window is not None}
    elif family.windows == "max_window_layers":
        switch["max_window_layers"] = sum(width is None for width in windows)
    return switch | {
        "sliding_window": window if window or switch else settings["max_context_tokens"],
        "layer_types": ["full_attention" if width is None else "sliding_attention" for width in windows],
    }


@dataclass(frozen=True)
class ModelDescription:
    """A model as config.json describes it: the family's name there, and our settings.

    `skipped_layers` are those of the files, from 0, that predict further tokens and are not part of the model.
    """

    model_type: str
    settings: dict[str, Any]
    skipped_layers: range = range(0)


def read_config(content: Mapping[str, Any]) -> ModelDescription:
    """Return the settings of a config.json."""
    if content.get("model_type") == OWN_TYPE:
        return ModelDescription(OWN_TYPE, own_settings(content))
    model_type = _read_type(ForeignConfig(content))
    if model_type == "nemotron_h":
        content = _with_layer_types(content)
    config = ForeignConfig({**DEFAULTS[model_type], **content})
    family = FAMILIES.get(model_type, Family(architecture=GPT2_ARCHITECTURE))
    for name, only in {**ONLY, **family.only}.items():
        value = config.get(name)
        if value is not None and value != only:
            raise DataError(f"config.json: {name}={value} is not supported; only {only} is.")
    settings = _read_gpt2(config) if model_type == "gpt2" else _read_llama(config, model_type)
    config.require_known(family.ignored)
    num_further, num_layers = content.get("num_nextn_predict_layers") or 0, settings["num_layers"]
    return ModelDescription(model_type, settings, range(num_layers, num_layers + num_further))


def _with_layer_types(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of Nemotron-H with the kinds of its layers in words, and their number."""
    spelled = [MAMBA_LETTERS.get(letter, letter) for letter in content.get("hybrid_override_pattern") or ""]
    kinds = content.get(MAMBA.layer_key) or content.get("layer_types") or spelled
    older = {"mamba": MAMBA.word, "attention": "full_attention"}
    kinds = [older.get(kind, kind) for kind in kinds]
    kept = {name: value for name, value in content.items() if name != MAMBA.layer_key}
    return {**kept, "layer_types": kinds, "num_hidden_layers": len(kinds)}


def _read_type(config: ForeignConfig) -> str:
    named, stated = config.get("architectures", default=[None])[0], config.get("model_type")
    by_architecture = {family.architecture: name for name, family in FAMILIES.items()} | {GPT2_ARCHITECTURE: "gpt2"}
    found = by_architecture.get(str(named)) if named else stated
    if found not in by_architecture.values():
        known = ", ".join(by_architecture)
        raise DataError(
            f"config.json: architecture {named or stated} is not supported; supported: {known}. `lmtrain import hf "
            "FOLDER OUT --as-is` takes any other class of transformers."
        )
    if stated not in (None, found):
        raise DataError(f"config.json: architectures={named} does not match model_type={stated}.")
    return str(found)


def _read_gpt2(config: ForeignConfig) -> dict[str, Any]:
    if not config.get("tie_word_embeddings", default=True):
        raise DataError("config.json: tie_word_embeddings=false is not supported for GPT-2.")
    known = {name: approximate for approximate, name in ACTIVATION_FUNCTIONS.items()} | {"gelu_pytorch_tanh": "tanh"}
    activation = config.get("activation_function", default="gelu_new")
    return node_of(
        GPT2,
        **{ours: config.count(theirs) for ours, theirs in GPT2_COUNTS.items()},
        gelu_approximate=config.one_of("activation_function", activation, known),
        feed_forward_width=config.get("n_inner"),
        norm_eps=config.get("layer_norm_epsilon", default=1e-5),
    )


def _read_llama(config: ForeignConfig, model_type: str) -> dict[str, Any]:
    family = FAMILIES[model_type]
    counts = {ours: config.count(theirs) for ours, theirs in LLAMA_COUNTS.items()}
    if counts["num_layers"] > MOST_LAYERS:
        raise DataError(f"config.json: num_hidden_layers must be at most {MOST_LAYERS}, got {counts['num_layers']}.")
    places = [place for key, held in family.biases.items() if config.get(key, default=False) for place in held]
    act, own_width = family.activation_key, config.get("head_dim")
    usual_width = config.get("qk_rope_head_dim") if family.latent else counts["width"] // counts["num_heads"]
    if not family.has_head_width and own_width not in (None, usual_width):
        raise DataError(f"config.json: head_dim={own_width} is not supported; remove the key.")
    settings = counts | {
        "num_kv_heads": config.get("num_key_value_heads", default=counts["num_heads"]),
        "head_width": own_width if family.has_head_width else None,
        "feed_forward_width": read_width(config, family),
        "activation": config.one_of(act, config.get(act, default="silu"), family.activations),
        "norm_eps": config.get(family.eps_key),
        "tie_embeddings": config.get("tie_embedding", "tie_word_embeddings", default=False),
        "biases": places,
        "experts": read_experts(config, family.experts, counts["num_layers"]) if family.experts else None,
        **family.always,
    }
    settings |= _read_mixers(config, family, counts["num_layers"])
    settings |= {name: derive(settings) for name, derive in family.derived.items()}
    for name, key in family.keys.items():
        theirs = _unrotated_flags(config, settings) if key.name == "no_rope_layers" else config.get(key.name)
        settings[name] = None if theirs is None and name.endswith("cap") else key.read(theirs, settings)
    settings |= read_rope(config, family, settings) | _read_windows(config, family, settings)
    return node_of(Llama, **settings)


def _read_mixers(config: ForeignConfig, family: Family, num_layers: int) -> dict[str, Any]:
    """Read what takes the place of self-attention."""
    if family.latent:
        config.asked |= LATENT_KEYS.keys()
        widths = {ours: config.get(theirs) for theirs, ours in LATENT_KEYS.items()}
        return {"latent_attention": node_of(LatentWidths, **widths), "num_kv_heads": None}
    recurrence = family.recurrent
    if recurrence is None:
        return {}
    part = {ours: config.get(theirs) for theirs, ours in recurrence.keys.items()}
    interval, attending = config.get("full_attention_interval", default=4), config.get("full_attn_idxs")
    if attending is None:
        attending = range(interval - 1, num_layers, interval) if recurrence.part is GatedDelta else range(num_layers)
    usual = ["full_attention" if layer in attending else recurrence.word for layer in range(num_layers)]
    letters = {recurrence.word: "R", "full_attention": "A"}
    letters |= {"mlp": "F"} if recurrence.part is Mamba2 else {}
    kinds = [config.one_of("layer_types", kind, letters) for kind in config.get("layer_types", default=usual)]
    if len(kinds) != num_layers:
        raise DataError(f"config.json: {len(kinds)} layer_types do not match num_hidden_layers={num_layers}.")
    return {"recurrent_layers": node_of(recurrence.part, **part), "recurrent_pattern": "".join(kinds)}


def read_width(config: ForeignConfig, family: Family) -> int:
    """Return the width of feed-forwards, which some configs give as a start of its calculation."""
    if "block_multiple_of" not in family.defaults:
        return config.count(family.width_key)
    width = config.count("block_ff_dim", family.width_key)
    config.asked |= {"block_multiple_of", "block_ffn_dim_multiplier"}
    if not config.get("block_auto_adjust_ff_dim"):
        return width
    multiple, multiplier = config.count("block_multiple_of"), config.get("block_ffn_dim_multiplier", default=1.0)
    return -(-int(multiplier * int(2 * width / 3)) // multiple) * multiple


def _unrotated_flags(config: ForeignConfig, settings: Mapping[str, Any]) -> list[int]:
    """Return 1 for each layer that rotates, of a list or of a number of layers."""
    every, num_layers = config.count("no_rope_layer_interval"), settings["num_layers"]
    flags = config.get("no_rope_layers", default=[int((layer + 1) % every != 0) for layer in range(num_layers)])
    if len(flags) != num_layers:
        raise DataError(f"config.json: {len(flags)} no_rope_layers do not match num_hidden_layers={num_layers}.")
    return flags


def _read_windows(config: ForeignConfig, family: Family, settings: Mapping[str, Any]) -> dict[str, Any]:
    num_layers, style = settings["num_layers"], family.windows
    window = config.get("sliding_window") if style else None
    config.asked |= {"max_window_layers"} if style == "max_window_layers" else set()
    config.asked |= {"sliding_window_pattern"} if isinstance(style, int) else set()
    config.asked |= {"use_sliding_window"} if style == "unrotated" else set()
    is_on = config.get("use_sliding_window", default=False) if family.has_window_switch else True
    letters = {"full_attention": "L", "attention": "L", "sliding_attention": "S"}
    stated = [] if style == "all" or family.recurrent else config.get("layer_types", default=[])
    pattern = "".join(config.one_of("layer_types", kind, letters) for kind in stated)
    if pattern and len(pattern) != num_layers:
        raise DataError(f"config.json: {len(pattern)} layer_types do not match num_hidden_layers={num_layers}.")
    if family.lists_layers and not pattern:
        raise DataError("config.json: layer_types must list attention for every layer, got none.")
    if not pattern:
        pattern = _usual_windows(config, family, settings)
    if window is None or not is_on or "S" not in pattern:
        return {"window_tokens": None, "window_pattern": None, "window_rope_base": None}
    return {"window_tokens": window, "window_pattern": pattern if "L" in pattern else None}


def _usual_windows(config: ForeignConfig, family: Family, settings: Mapping[str, Any]) -> str:
    """Return the letters of layers where no key lists them."""
    num_layers = settings["num_layers"]
    if family.windows is None:
        return "L" * num_layers
    if family.windows == "listed" and config.get("use_sliding_window", default=False):
        raise DataError("config.json: use_sliding_window=true needs layer_types.")
    if family.windows == "unrotated":
        uses = config.get("use_sliding_window", default=False)
        letters = settings["rotary_pattern"] or "R"
        return "".join("S" if uses and letters[i % len(letters)] == "N" else "L" for i in range(num_layers))
    if isinstance(family.windows, int):
        period = config.get("sliding_window_pattern", default=family.windows)
        return "".join("S" if (layer + 1) % period else "L" for layer in range(num_layers))
    first = config.get("max_window_layers") if family.windows == "max_window_layers" else 0
    num_full = min(first or 0, num_layers)
    return "L" * num_full + "S" * (num_layers - num_full)


OWN_TYPE: Final = "lmtrain"
OWN_PREFIX: Final = "model."  # of the names of weights; below it they are ours
OWN_CODE_LACKS: Final = frozenset(  # settings of classes that transformers has
    {"rotary_share", "rotary_neighbours", "rotary_pattern", "window_rope_base", "norm_place", "zero_centered_norms"}
    | {"biases", "attention_soft_cap", "embedding_multiplier", "residual_multiplier", "logit_multiplier"}
    | {"attention_sinks", "attention_output_gate", "latent_attention", "recurrent_layers", "recurrent_pattern"}
    | {"single_branch_layers"}
)
CODE: Final = Path(__file__).with_name("own_code") / "modeling_lmtrain.py"


def own_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model's completed settings for the code that an export carries."""
    off = {name: value for name, value in off_default(settings).items() if name in OWN_CODE_LACKS}
    scaling = PARTS.get(str((settings["rope_scaling"] or {}).get(TARGET)))
    if scaling not in (None, RopeScaling, LinearRopeScaling):
        off["rope_scaling"] = settings["rope_scaling"][TARGET]
    if settings["activation"] == "geglu_tanh":
        off["activation"] = settings["activation"]
    if off:
        raise _no_class(off, {name: default_of(settings, name) for name in off})
    kept = {name: _nodes_removed(value) for name, value in settings.items() if name not in (TARGET, *WITHOUT_EFFECT)}
    kept = {name: value for name, value in kept.items() if name not in OWN_CODE_LACKS | TRAINING_ONLY}
    return {
        "architectures": ["LmtrainForCausalLM"],
        "model_type": OWN_TYPE,
        "auto_map": {
            "AutoConfig": f"{CODE.stem}.LmtrainConfig",
            "AutoModelForCausalLM": f"{CODE.stem}.LmtrainForCausalLM",
        },
        "family": "llama",
        "settings": kept,
        **{theirs: settings[ours] for ours, theirs in LLAMA_COUNTS.items()},
        "initializer_range": settings["init_std"],
        "tie_word_embeddings": False,  # a tied head has no separate weight to tie
        "use_cache": False,
    }


def _nodes_removed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _nodes_removed(held) for name, held in value.items() if name != TARGET}
    return plain(value)


def own_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config written by `own_config`."""
    kept = config.get("settings")
    if config.get("family") != "llama" or not isinstance(kept, Mapping):
        raise DataError('config.json of model_type=lmtrain has no "family" and "settings"; export the model again.')
    settings = dict(kept)
    if scaling := settings.get("rope_scaling"):
        settings["rope_scaling"] = node_of(LinearRopeScaling if {*scaling} == {"factor"} else RopeScaling, **scaling)
    if experts := settings.get("experts"):
        settings["experts"] = node_of(Experts, **experts)
    return node_of(Llama, **settings)
