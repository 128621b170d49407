"""Options of a Llama: refused where they cannot be, contradict each other, or would have no effect; else built."""

from collections.abc import Sequence

from lmtrain.errors import ConfigurationError
from lmtrain.models.dimensions import check_above_zero, check_gate
from lmtrain.models.embeddings import GatedSmear, Smear
from lmtrain.models.residual_stream import SkipStart


def check_values(layers: Sequence[int], num_layers: int, *, gate: int | None, init_std: float) -> None:
    """Raise ConfigurationError for value embeddings of layers that are not there, or for their settings without any."""
    for layer in layers:
        if not 0 <= layer < num_layers:
            raise ConfigurationError(
                f"model.value_embedding_layers={list(layers)} names layer {layer} of "
                f"model.num_layers={num_layers}; layers are 0 to {num_layers - 1}."
            )
        if layers.count(layer) > 1:
            nearest = sorted({*layers})
            raise ConfigurationError(
                f"model.value_embedding_layers={list(layers)} names layer {layer} twice; nearest valid: {nearest}."
            )
    if init_std and not layers:
        raise without("value_embedding_init_std", init_std, "value_embedding_layers", nearest="0.0")
    if gate is not None and not layers:
        raise without("value_gate_width", gate, "value_embedding_layers", nearest="null")


def check_head(logit_soft_cap: float | None, init_std: float | None, *, tie_embeddings: bool) -> None:
    """Raise ConfigurationError for a cap that is no bound, or a spread of a head that is the token embedding."""
    check_above_zero(nearest="15.0, or null for no cap", logit_soft_cap=logit_soft_cap)
    if tie_embeddings and init_std is not None:
        raise ConfigurationError(
            f"model.head_init_std={init_std} needs a head of its own: set model.tie_embeddings=false."
        )


def build_smear(width: int, gate_width: int | None, *, embedding_smear: bool) -> Smear | GatedSmear | None:
    """Build the smear of embeddings: a weight per dimension, or a gate that reads the first `gate_width`; or none."""
    if not embedding_smear:
        if gate_width is not None:
            raise without("smear_gate_width", gate_width, "embedding_smear=true", nearest="null")
        return None
    if gate_width is None:
        return Smear(width)
    check_gate("smear_gate_width", gate_width, width)
    return GatedSmear(gate_width)


def skip_starts(
    num_layers: int, start: SkipStart | None, *, embedding_skip: bool
) -> list[tuple[float, float]] | list[None]:
    """Return where each layer's scalars of the embedding skip start; None where there is no skip."""
    if not embedding_skip:
        if start is not None:
            raise without("embedding_skip_start", start, "embedding_skip=true", nearest="null")
        return [None] * num_layers
    start = start or SkipStart()
    return [start.of_layer(layer, num_layers) for layer in range(num_layers)]


def without(name: str, value: object, needs: str, *, nearest: str) -> ConfigurationError:
    """Say that a setting has no effect without another one."""
    return ConfigurationError(f"model.{name}={value} has no effect without model.{needs}; nearest valid: {nearest}.")
