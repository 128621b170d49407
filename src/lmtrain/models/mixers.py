"""What mixes the tokens of each layer: self-attention, attention from latent vectors, or layers without attention."""

from collections.abc import Callable
from functools import partial
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.models.delta_net import GatedDelta, GatedDeltaNet
from lmtrain.models.latent_attention import LatentAttention, LatentWidths
from lmtrain.models.llama_settings import check_letters
from lmtrain.models.mamba import Mamba2, Mamba2Layer
from lmtrain.models.self_attention import AttentionSettings, SelfAttention
from lmtrain.models.short_convolution import GatedConvolution, ShortConvolution

RECURRENT, ATTENTION, FEED_FORWARD = "R", "A", "F"
RecurrentLayer = GatedDeltaNet | GatedConvolution | Mamba2Layer
Mixer = SelfAttention | LatentAttention | RecurrentLayer
Recurrent = GatedDelta | ShortConvolution | Mamba2
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
    single_branch: bool = False,
) -> list[Callable[..., Mixer | None]]:
    """Return what builds each layer's mixer, by SelfAttention's settings of one layer.

    `pattern`, repeated, spells layers: R are `recurrent`, A attend, and with `single_branch` F have none.
    """
    attention = partial(SelfAttention, width, settings) if latent is None else _latent(width, settings, latent)
    if recurrent is None or pattern is None:
        settings_without = {
            "recurrent_layers": recurrent,
            "recurrent_pattern": pattern,
            "single_branch_layers": single_branch or None,
        }
        for name, value in settings_without.items():
            if value is not None:
                raise ConfigurationError(f"model.{name} needs both model.recurrent_layers and model.recurrent_pattern.")
        return [attention] * num_layers
    letters = {RECURRENT: "recurrent", ATTENTION: "attention"}
    letters |= {FEED_FORWARD: "feed-forward"} if single_branch else {}
    check_letters("recurrent_pattern", pattern, letters, usual="RRRA")

    def build(letter: str, *, window_tokens: int | None, rotates: bool, value_embedding: bool) -> RecurrentLayer | None:
        del window_tokens, rotates
        if value_embedding:
            raise ConfigurationError("model.value_embedding_layers must be layers with attention.")
        return recurrent.build(width, norm_eps=settings.qk_norm.eps) if letter == RECURRENT else None

    spelled = (pattern[layer % len(pattern)] for layer in range(num_layers))
    return [attention if letter == ATTENTION else partial(build, letter) for letter in spelled]


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
