"""What mixes the tokens of each layer: self-attention, attention from latent vectors, or layers without attention."""

from collections.abc import Callable
from functools import partial
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.models.delta_net import GatedDelta, GatedDeltaNet
from lmtrain.models.latent_attention import LatentAttention, LatentWidths
from lmtrain.models.llama_settings import check_letters
from lmtrain.models.self_attention import AttentionSettings, SelfAttention
from lmtrain.models.short_convolution import GatedConvolution, ShortConvolution

RECURRENT, ATTENTION = "R", "A"
RecurrentLayer = GatedDeltaNet | GatedConvolution
Mixer = SelfAttention | LatentAttention | RecurrentLayer
Recurrent = GatedDelta | ShortConvolution
# Settings of self-attention without an effect on latent attention, by AttentionSettings' names.
NOT_LATENT: Final = ("num_kv_heads", "head_width", "biases", "sinks", "rotary_share", "key_smear", "output_gate")
NAMES: Final = {"sinks": "attention_sinks"}


def layer_mixers(
    num_layers: int,
    width: int,
    settings: AttentionSettings,
    latent: LatentWidths | None,
    recurrent: Recurrent | None,
    *,
    pattern: str | None,
) -> list[Callable[..., Mixer]]:
    """Return what builds each layer's mixer, by SelfAttention's settings of one layer.

    `pattern`, repeated, spells layers: R are `recurrent`, A attend.
    """
    attention = partial(SelfAttention, width, settings) if latent is None else _latent(width, settings, latent)
    if recurrent is None or pattern is None:
        for name, value in (("recurrent_layers", recurrent), ("recurrent_pattern", pattern)):
            if value is not None:
                raise ConfigurationError(f"model.{name} needs both model.recurrent_layers and model.recurrent_pattern.")
        return [attention] * num_layers
    check_letters("recurrent_pattern", pattern, {RECURRENT: "recurrent", ATTENTION: "attention"}, usual="RRRA")

    def build(*, window_tokens: int | None, rotates: bool, value_embedding: bool) -> RecurrentLayer:
        del window_tokens, rotates
        if value_embedding:
            raise ConfigurationError("model.value_embedding_layers must be layers with attention.")
        return recurrent.build(width, norm_eps=settings.qk_norm.eps)

    return [build if pattern[layer % len(pattern)] == RECURRENT else attention for layer in range(num_layers)]


def _latent(width: int, settings: AttentionSettings, latent: LatentWidths) -> Callable[..., LatentAttention]:
    plain = AttentionSettings(num_heads=settings.num_heads, kernel=settings.kernel)
    different = [name for name in NOT_LATENT if getattr(settings, name) != getattr(plain, name)]
    for name in [*different, *(["qk_norm"] if settings.qk_norm.is_on else [])]:
        raise ConfigurationError(f"model.{NAMES.get(name, name)} has no effect with model.latent_attention.")

    def build(*, window_tokens: int | None, rotates: bool, value_embedding: bool) -> LatentAttention:
        places = {
            "window_tokens": window_tokens,
            "rotary_pattern": not rotates,
            "value_embedding_layers": value_embedding,
        }
        for name in (name for name, is_set in places.items() if is_set):
            raise ConfigurationError(f"model.{name} is not supported with model.latent_attention; leave it out.")
        return LatentAttention(width, settings, latent)

    return build
