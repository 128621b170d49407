"""The two ways to attend over slices of a sequence: an exchange of heads where a group divides them, else a gather."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.models.gpt2 import GPT2, GPT2Block
from lmtrain.models.llama import Llama, LlamaBlock
from lmtrain.models.mixers import RecurrentLayer
from lmtrain.models.self_attention import SelfAttention
from lmtrain.parallel.gathered_keys import ZigzagSlices, gather_keys
from lmtrain.parallel.group_sizes import no_cuts
from lmtrain.parallel.sequence_slices import SequenceSlices
from lmtrain.parallel.tensor_parallel import head_sizes, norms_all_heads
from lmtrain.parallel.ulysses import HeadExchange, share_heads


def slice_sequences(model: LanguageModel, group: DeviceMesh) -> SequenceSlices:
    """Let a model compute with this rank's slice of each sequence."""
    require_slices(model)
    assert isinstance(model, GPT2 | Llama)
    if all(_divides_heads(block, group.size()) for block in model.layers):
        exchange = HeadExchange(group)
        share_heads(model, exchange)
        return exchange
    slices = ZigzagSlices(group)
    gather_keys(model, slices)
    return slices


def require_slices(model: nn.Module) -> None:
    """Refuse a model whose tokens meet elsewhere than in attention."""
    if not isinstance(model, GPT2 | Llama):
        raise ConfigurationError(
            f"{type(model).__name__} cannot be sliced over a context group, GPT2 and Llama can; use strategy=fsdp."
        )
    if model.num_future_tokens:
        raise no_cuts("num_future_tokens")
    if any(isinstance(module, RecurrentLayer) for module in model.layers.modules()):
        raise no_cuts("recurrent_layers")


def _divides_heads(block: nn.Module, num_ranks: int) -> bool:
    """Return whether each rank can have its share of a layer's heads of queries and of keys."""
    assert isinstance(block, GPT2Block | LlamaBlock)
    attention = block.self_attention if isinstance(block, LlamaBlock) else None
    if isinstance(block, LlamaBlock) and not isinstance(attention, SelfAttention):
        return attention is None  # latent attention does not
    smears_keys = attention is not None and attention.key_smear is not None
    if smears_keys and norms_all_heads(attention):  # a norm before the exchange, of keys smeared behind it
        return False
    return not any(number % num_ranks for number in head_sizes(block).values())
