"""Any `nn.Module` that returns logits, as the model of a run.

B batch, T tokens, N tokens of several texts one after the other, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NoReturn, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.models.documents import Documents, EarlierTokens
from lmtrain.models.head import OutputHead


class LogitsModel(LanguageModel):
    """Train a module of ids [B, T] to logits [B, T, V], or to an object with `.logits`, with `loss=cross_entropy`.

    `module` is the module, or a function that makes it. Its longest `nn.ModuleList`, if any, is what compilation,
    recomputation and sharding take block by block. A plan of it counts its parameters, and leaves out attention.
    A text is written by reading all of it again for each token.

    In a config the module is made without memory, so each part with parameters needs `reset_parameters`, as torch's
    own have:

        model:
          _target_: lmtrain.models.own_model.LogitsModel
          module: {_target_: my_package.Net, vocab_size: 512}
          vocab_size: 512
          max_context_tokens: 128

    Example:
        >>> CausalLMModule(LogitsModel(my_net, vocab_size=512, max_context_tokens=128), loss=CrossEntropy(), ...)
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        vocab_size: int,
        max_context_tokens: int,
        attention: object = None,
    ) -> None:
        super().__init__()
        del attention  # a run's choice of a kernel; the module has its own
        self.module = module if isinstance(module, nn.Module) else module()
        self.vocab_size, self.max_context_tokens = vocab_size, max_context_tokens
        lists = [each for each in self.module.modules() if isinstance(each, nn.ModuleList)]
        self._blocks = [max(lists, key=len, default=nn.ModuleList())]  # in a list: the module has them already

    @property
    @override
    def blocks(self) -> nn.ModuleList:
        return self._blocks[0]

    @override
    def features(
        self, tokens: Int[Tensor, "B T"], documents: Documents | None = None
    ) -> tuple[Float[Tensor, "B T V"], None]:
        """Return the module's logits [B, T, V], which its head leaves as they are."""
        if isinstance(documents, EarlierTokens):
            return self._read_again(tokens, documents), None
        if documents is not None:
            raise ConfigurationError("model: a module that returns logits sees whole rows; use packing=contiguous.")
        return self._logits(tokens), None

    def _logits(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        found: Any = self.module(tokens)
        logits = cast("Tensor", getattr(found, "logits", found))
        if logits.shape != (*tokens.shape, self.vocab_size):
            raise ConfigurationError(
                f"model.module must return logits of shape {(*tokens.shape, self.vocab_size)}, got "
                f"{tuple(logits.shape)}; set model.vocab_size to the last number."
            )
        return logits

    def _read_again(self, tokens: Int[Tensor, "1 N"], before: EarlierTokens) -> Float[Tensor, "1 N V"]:
        """Return the logits of each text's next tokens, read again from its beginning."""
        known = torch.cat([*reversed(before.earlier(tokens, before.num_positions - 1)), tokens])  # [positions, N]
        found, last = list[Tensor](), -1
        for num_tokens, length in before.lengths:
            last += num_tokens
            text = known[before.num_positions - length :, last]
            found.append(self._logits(text.unsqueeze(0))[:, length - num_tokens :])
        return torch.cat(found, dim=1)

    @override
    def output_head(self) -> OutputHead:
        return cast("OutputHead", GivenLogits())

    @override
    def initialize_weights(self, generator: torch.Generator) -> None:
        """Let every part draw its own initial weights, seeded by the generator."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(generator.initial_seed())
            for name, part in self.module.named_modules():
                reset: Any = getattr(part, "reset_parameters", None)
                if reset is not None:
                    reset()
                elif [*part.parameters(recurse=False), *part.buffers(recurse=False)]:
                    raise ConfigurationError(
                        f"model.module: {name or type(part).__name__} has weights of its class; give it "
                        "reset_parameters(), or pass the module from Python."
                    )

    @override
    def shape(self) -> ModelShape:
        num_parameters = sum(one.numel() for one in self.parameters())
        tables = [part for part in self.modules() if isinstance(part, nn.Embedding)]
        num_lookups = sum(part.weight.numel() for part in tables)
        return ModelShape(
            num_parameters=num_parameters,
            num_embedding_parameters=num_lookups,
            num_matmul_parameters=num_parameters - num_lookups,
            num_active_parameters=num_parameters,
            attention=(),
            width=tables[0].embedding_dim if tables else 1,
        )


@final
class GivenLogits:
    """The head of a module whose output is logits already."""

    soft_cap = None

    def __call__(self, logits: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
        """Return the logits."""
        return logits

    @property
    def weight(self) -> NoReturn:
        """Refuse a loss that multiplies by the head itself."""
        raise ConfigurationError("loss must be cross_entropy for a model that returns logits.")
