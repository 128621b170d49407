"""Rotations in a config.json: in the style of release 5 of transformers and of the releases before, read in either."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lmtrain.errors import DataError
from lmtrain.interop.foreign_config import ForeignConfig
from lmtrain.interop.hf_families import Family, Settings
from lmtrain.interop.model_settings import PARTS, TARGET, node_of, plain
from lmtrain.models.rope import (
    DynamicRopeScaling,
    LinearRopeScaling,
    LongRopeScaling,
    RopeScaling,
    YarnRopeScaling,
    yarn_scale,
)


@dataclass(frozen=True, kw_only=True)
class ScalingKeys:
    """A kind of scaled rotations: our settings of it and their keys, and the keys that must be given."""

    part: type
    keys: Mapping[str, str]
    needed: tuple[str, ...]


ORIGINAL: Final = "original_max_position_embeddings"
SCALINGS: Final = {
    "llama3": ScalingKeys(
        part=RopeScaling,
        keys={
            "factor": "factor",
            "low_frequency_factor": "low_freq_factor",
            "high_frequency_factor": "high_freq_factor",
            "original_context_tokens": ORIGINAL,
        },
        needed=("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    ),
    "linear": ScalingKeys(part=LinearRopeScaling, keys={"factor": "factor"}, needed=("factor",)),
    "dynamic": ScalingKeys(part=DynamicRopeScaling, keys={"factor": "factor"}, needed=("factor",)),
    "yarn": ScalingKeys(
        part=YarnRopeScaling,
        keys={
            "factor": "factor",
            "original_context_tokens": ORIGINAL,
            "fast_turns": "beta_fast",
            "slow_turns": "beta_slow",
            "whole_pairs": "truncate",
            "attention_factor": "attention_factor",
        },
        needed=(),
    ),
    "longrope": ScalingKeys(
        part=LongRopeScaling,
        keys={
            "short_factors": "short_factor",
            "long_factors": "long_factor",
            "attention_factor": "attention_factor",
            "original_context_tokens": ORIGINAL,
        },
        needed=("short_factor", "long_factor"),
    ),
}
ROPE_KEYS: Final = frozenset(  # of any kind of rotation
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mscale", "mscale_all_dim"}
    | {key for scaling in SCALINGS.values() for key in scaling.keys.values()}
)


def write_rope(settings: Settings, family: Family) -> dict[str, Any]:
    """Return rotary settings in both styles: `rope_parameters` (release 5), `rope_theta` with `rope_scaling` (4)."""
    theta, scaling = settings["rope_base"], settings["rope_scaling"]
    share = {"partial_rotary_factor": settings["rotary_share"]} if family.partial else {}
    new, root = _written_scaling(scaling or {}, settings["max_context_tokens"])
    if family.latent and scaling is not None:  # a factor of scores, in the terms of YaRN
        factor, scale = new.get("factor", 1.0), math.sqrt(settings["attention_multiplier"])
        new["mscale_all_dim"] = (scale - 1) / (yarn_scale(factor) - 1) if factor > 1 else 0.0
    old = None if scaling is None else {"type": new["rope_type"], **new}
    if old and new["rope_type"] == "longrope":  # release 4 takes these alone
        old = {name: value for name, value in old.items() if name not in ("rope_type", *root)}
    config = {**share, **root, "rope_theta": theta, "rope_scaling": old}
    if family.window_rope_base is None:
        return {"rope_parameters": {"rope_theta": theta, **new, **share}, **config}
    base = theta if settings["window_rope_base"] is None else settings["window_rope_base"]
    by_layer = {
        "full_attention": {"rope_theta": theta, **new},
        "sliding_attention": {"rope_theta": base, "rope_type": "default"},
    }
    if family.has_local_base:
        config["rope_local_base_freq"] = base
    elif base != theta:  # no key of release 4 says so
        config = {**share, **root}
    return {"rope_parameters": by_layer, **config}


def _written_scaling(scaling: Settings, max_context_tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return their keys of a scaling, and those at the root of a config."""
    part = PARTS.get(str(scaling.get(TARGET)))
    kind = next((name for name, one in SCALINGS.items() if one.part is part), None)
    if kind is None:
        return {"rope_type": "default"}, {}
    known = {theirs: plain(scaling[ours]) for ours, theirs in SCALINGS[kind].keys.items()}
    new: dict[str, Any] = {"rope_type": kind, **{theirs: value for theirs, value in known.items() if value is not None}}
    if kind == "dynamic":
        return new, {"max_position_embeddings": scaling["original_context_tokens"]}
    if kind != "longrope":
        return new, {}
    if math.isclose(new["attention_factor"], _long_rope_scale(max_context_tokens / new[ORIGINAL], new[ORIGINAL])):
        del new["attention_factor"]
    return new, {ORIGINAL: new[ORIGINAL]}


def _long_rope_scale(factor: float, original: int) -> float:
    """Return LongRoPE's factor of queries and keys for a stretch."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def read_rope(config: ForeignConfig, family: Family, settings: Settings) -> dict[str, Any]:
    """Read either style; both may be there where they agree."""
    new, theta, old = config.get("rope_parameters"), config.get("rope_theta"), config.get("rope_scaling")
    local = config.get("rope_local_base_freq") if family.has_local_base else None
    share = config.get("partial_rotary_factor")
    if family.scales_rope and not new and not old:
        raise DataError("config.json: rope_parameters must be given, as transformers scales this class's by default.")
    shared = {"rope_theta": family.rope_base} | ({} if share is None else {"partial_rotary_factor": share})
    of_window = {} if family.window_rope_base is None else {"rope_theta": family.window_rope_base}
    styles = []
    if new and family.window_rope_base is not None:
        if not {*new} <= {"full_attention", "sliding_attention"}:
            raise DataError("config.json: rope_parameters must have full_attention and sliding_attention alone.")
        full, sliding = (new.get(f"{kind}_attention") or {} for kind in ("full", "sliding"))
        styles.append(({**shared, **full}, {**of_window, **sliding}))
    elif new:
        styles.append(({**shared, **new}, of_window))
    if theta is not None or old or not new:
        whole = {**shared, **({} if theta is None else {"rope_theta": theta}), **(old or {})}
        base = local if family.has_local_base else theta  # of windows, where they have one
        styles.append((whole, {**of_window, **({"rope_theta": base} if of_window and base else {})}))
    first, *others = [_read_style(config, family, settings, *style) for style in styles]
    if others and others != [first]:
        raise DataError("config.json: rope_parameters must agree with rope_theta and rope_scaling; keep one of them.")
    if not family.latent:
        return first
    style = new or old or {}
    weight = style.get("mscale_all_dim") if style.get("rope_type", style.get("type")) != "default" else None
    return {**first, "attention_multiplier": yarn_scale(style["factor"], weight) ** 2 if weight else 1.0}


def _read_style(
    config: ForeignConfig,
    family: Family,
    settings: Settings,
    full: Mapping[str, Any],
    sliding: Mapping[str, Any],
) -> dict[str, Any]:
    for key in sorted({*full, *sliding} - ROPE_KEYS):
        raise DataError(f"config.json: {key} of rope_parameters is not supported.")
    share = full.get("partial_rotary_factor", 1.0)
    if share != 1.0 and not family.partial:
        raise DataError("config.json: partial_rotary_factor must be 1.")
    if (kind := sliding.get("rope_type", "default")) != "default":
        raise DataError(f"config.json: rope_type={kind} of sliding_attention is not supported; only default is.")
    scaling = _read_scaling(config, full, settings["max_context_tokens"])
    base, of_window = float(full["rope_theta"]), float(sliding.get("rope_theta", full["rope_theta"]))
    has_own = sliding and (of_window != base or scaling["rope_scaling"] is not None)
    return {
        "rope_base": base,
        "rotary_share": float(share),
        "window_rope_base": of_window if has_own else None,
        **scaling,
    }


def _read_scaling(config: ForeignConfig, style: Mapping[str, Any], max_context_tokens: int) -> dict[str, Any]:
    kinds = {"default": None, **SCALINGS, "su": SCALINGS["longrope"]}  # its name before
    kind = style.get("rope_type", style.get("type", "default"))
    scaling: ScalingKeys | None = config.one_of("rope_type", kind, kinds)
    if scaling is None:
        return {"rope_scaling": None}
    if missing := [name for name in scaling.needed if style.get(name) is None]:
        raise DataError(f"config.json: rope_type={kind} needs {missing[0]!r}.")
    numbers = {ours: _floats(style[key]) for ours, key in scaling.keys.items() if style.get(key) is not None}
    original, longest = (
        int(config.content.get(ORIGINAL) or style.get(ORIGINAL) or max_context_tokens),
        max_context_tokens,
    )
    stretch = float(style.get("factor") or max_context_tokens / original)
    if scaling.part is DynamicRopeScaling:  # longer texts than first trained on are what it is for
        original, longest = max_context_tokens, int(max_context_tokens * max(stretch, 1.0))
    elif scaling.part is YarnRopeScaling:
        scale, scale_all = style.get("mscale"), style.get("mscale_all_dim")
        of_scores = yarn_scale(stretch, scale) / yarn_scale(stretch, scale_all) if scale and scale_all else None
        numbers = {"attention_factor": of_scores, **numbers, "factor": stretch}
    elif scaling.part is LongRopeScaling:
        numbers = {"attention_factor": _long_rope_scale(stretch, original), **numbers}
    if scaling.part is not LinearRopeScaling:
        numbers["original_context_tokens"] = original
    return {"rope_scaling": node_of(scaling.part, **numbers), "max_context_tokens": longest}


def _floats(value: Any) -> Any:
    """Return a number as a float, also in a list; true and false stay."""
    if isinstance(value, list):
        return [float(one) for one in value]
    return value if isinstance(value, bool) else float(value)
