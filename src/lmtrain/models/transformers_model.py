"""Any causal model of transformers, by its own class: trained, planned and scored here as the models of this package.

The only module that imports transformers (docs/decisions/0029-the-models-of-transformers.md). A class is one of the
installed package: code in a model's folder, and kernels named by a config, are never run.
B batch, T tokens, N tokens of several texts one after the other, V vocabulary.
"""

import importlib
import inspect
import json
import logging
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast, final
from unittest.mock import patch

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from typing_extensions import override

from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.missing_package import require_package
from lmtrain.models.dimensions import check_possible
from lmtrain.models.documents import Documents, EarlierTokens, token_positions
from lmtrain.models.own_model import LogitsModel
from lmtrain.models.transformers_config import LENGTHS, decoded, plain_settings

ANY_LENGTH: Final = 1 << 20  # tokens, of a class without a table of positions
COUNTED_TOKENS: Final = 8  # of the shortest of three texts whose FLOPs are counted: a scan goes token by token
SIZES: Final = re.compile("(_size|_dim|heads|experts|n_embd|d_model)$")
LAYERS: Final = re.compile("(layers|n_layer)$")
MOST_LAYERS: Final = 10_000
SAME: Final = 1e-5  # of the largest logit: fp32 differs by less, another document's token by far more
PROBE: Final = ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6))  # positions of two documents


@final
class TransformersModel(LogitsModel):
    """A model of transformers from the values of its config.json; `path` notes the folder that they are from.

    Its weights are drawn as by `AutoModelForCausalLM.from_config` after `torch.manual_seed`. Documents of one row are
    kept apart by their positions, where the class does so.

    Example:
        >>> TransformersModel(config={"model_type": "gpt_neox", "hidden_size": 64, ...})
    """

    def __init__(self, *, config: Mapping[str, Any], path: str | None = None, attention: object = None) -> None:
        if not config.get("model_type"):
            raise ConfigurationError(f"model.path: must be a folder of transformers with a config.json, got {path}.")
        self.config: dict[str, Any] = {**config}
        module = build_module(self.config)
        module.config.use_cache = False  # the cache would hide that rows hold documents, and takes memory
        sizes: Any = module.config.get_text_config()
        lengths = (getattr(sizes, name, None) for name in LENGTHS)
        longest = next((length for length in lengths if length), ANY_LENGTH)
        super().__init__(module, vocab_size=sizes.vocab_size, max_context_tokens=longest, attention=attention)
        self.name = type(module).__name__
        self._own_frozen = _num_frozen(module)  # of the class: biases of a router that no gradient moves
        self.start_line = f"model=transformers: {self.name} runs by its own class, slower than a model of lmtrain."
        self._keeps_documents_apart: bool | None = None  # until its weights are drawn

    @override
    def features(
        self, tokens: Int[Tensor, "B T"], documents: Documents | None = None
    ) -> tuple[Float[Tensor, "B T V"], None]:
        if isinstance(tokens, FakeTensor):  # as many bytes, and no values to see documents by
            masks: Any = importlib.import_module("transformers.masking_utils")
            one_document = patch.object(masks, "find_packed_sequence_indices", lambda _: None)
            with one_document if documents is None else nullcontext():
                return super().features(tokens)
        if documents is None or isinstance(documents, EarlierTokens):
            return super().features(tokens, documents)
        if self._keeps_documents_apart is False:
            raise ConfigurationError(
                f"packing.document_mask: must be false with {self.name}, which cannot keep the documents of a row "
                "apart. Did you mean packing=contiguous?"
            )
        return self.module(tokens, position_ids=token_positions(documents)).logits, None

    @override
    def initialize_weights(self, generator: torch.Generator) -> None:
        """Draw every parameter and make every buffer as the class does, seeded by the generator."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(generator.initial_seed())
            fresh = build_module(self.config)
        _require_blind_to_later_tokens(fresh)
        self._keeps_documents_apart = _keeps_documents_apart(fresh)
        cast("Any", self.module).tie_weights()  # undone by to_empty
        given = dict(chain(fresh.named_parameters(), fresh.named_buffers()))
        with torch.no_grad():
            for name, ours in chain(self.module.named_parameters(), self.module.named_buffers()):
                ours.copy_(given[name])

    @override
    def shape(self) -> ModelShape:
        """Count parameters, and FLOPs by torch's counter over the class; of adapters, those of products."""
        counted = _shape(json.dumps(self.config, sort_keys=True))
        num_frozen = _num_frozen(self)
        if num_frozen == self._own_frozen:
            return counted
        num_trained = sum(one.numel() for one in self.parameters() if one.requires_grad)
        return replace(
            counted,
            num_parameters=counted.num_parameters + num_trained,
            num_active_parameters=counted.num_active_parameters + num_trained,
            num_matmul_parameters=counted.num_matmul_parameters + num_trained,
            num_frozen_parameters=num_frozen,
            num_frozen_matmul_parameters=counted.num_matmul_parameters,
        )


def _num_frozen(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters() if not one.requires_grad)


def build_module(config: Mapping[str, Any], *, dtype: torch.dtype = torch.float32) -> Any:
    """Build the causal model of a config's values by its class in the installed package.

    Raises:
        ConfigurationError: It has no such class, or the class refuses a value.
        DataError: Its tokens see later ones.
        EnvironmentProblem: The package is missing.
    """
    library, settings = _library(), plain_settings(config)
    for name, value in settings.items():
        if SIZES.search(name) and isinstance(value, int):
            check_possible(f"model.config.{name}", value)
        if LAYERS.search(name) and isinstance(value, int) and value > MOST_LAYERS:
            raise ConfigurationError(f"model.config.{name}: must be at most {MOST_LAYERS}, got {value}.")
    kind = settings.pop("model_type", None)
    if kind not in library.CONFIG_MAPPING:
        raise ConfigurationError(
            f"model.config.model_type: must be a class of the installed transformers {library.__version__}, got "
            f"{kind}; code in its folder is never run."
        )
    try:
        made = library.CONFIG_MAPPING[kind].from_dict(decoded(settings))
        module = library.AutoModelForCausalLM.from_config(made, dtype=dtype)
    except Exception as problem:
        reason = " ".join(str(problem).split())
        raise ConfigurationError(f"model.config: transformers cannot build a {kind} of it: {reason}") from problem
    _require_causal(kind, module.config.get_text_config())
    return module


def _require_causal(kind: str, sizes: Any) -> None:
    """Refuse a class whose tokens see later ones; GPT-NeoX's is_decoder, false by default, changes nothing."""
    is_off = {name: getattr(sizes, name, None) is False for name in ("is_causal", "is_decoder")}
    is_off["is_decoder"] &= not kind.startswith("gpt_neox")
    if found := [name for name, off in is_off.items() if off]:
        raise DataError(f"model.config.{found[0]}: must be true, got false: each token would see its target.")
    if (seen := getattr(sizes, "use_bidirectional_attention", None)) in (True, "all"):
        raise DataError(
            f"model.config.use_bidirectional_attention: must be false, got {seen}: each token would see its target."
        )


def _require_blind_to_later_tokens(module: Any) -> None:
    """Refuse a class, such as XLM's by default, whose logits change with a later token; some say so in no setting."""
    module.eval()
    module.config.use_cache = False
    vocab_size = module.config.get_text_config().vocab_size  # its middle has no token of padding
    tokens = (torch.arange(len(PROBE[1]), device=module.device).unsqueeze(0) + vocab_size // 2) % vocab_size
    changed = torch.cat([tokens[:, :-1], tokens[:, :1]], dim=1)
    with torch.no_grad():
        logits, others = (module(one).logits[:, :-1] for one in (tokens, changed))
    if (logits - others).abs().max() > 20 * torch.finfo(logits.dtype).eps * logits.abs().max():
        raise DataError(
            f"model.config.model_type: must be a causal model, got {module.config.model_type}, whose tokens see later "
            "ones: each would see its target."
        )


@cache
def _library() -> Any:
    require_package("model=transformers", "transformers", extra="transformers")
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # torchao's import, by transformers (5.23)
    import transformers

    library: Any = transformers
    library.logging.set_verbosity_error()  # of kernels that it lacks
    library.logging.disable_progress_bar()
    moe: Any = importlib.import_module("transformers.integrations.moe")
    takes_groups = moe._can_use_grouped_mm  # noqa: SLF001

    def takes_dtype(rows: Tensor, *others: Tensor) -> bool:
        is_refused = isinstance(rows, FakeTensor) and rows.dtype != torch.bfloat16  # torch's take no other (2.13)
        return not is_refused and takes_groups(rows, *others)

    moe._can_use_grouped_mm = takes_dtype  # noqa: SLF001
    return library


def _keeps_documents_apart(module: Any) -> bool:
    """Return whether two documents in one row, by their positions, have the logits of each alone."""
    if module._is_stateful or "position_ids" not in inspect.signature(module.forward).parameters:  # noqa: SLF001
        return False
    module.eval()
    module.config.use_cache = False
    positions = torch.tensor([[*chain(*PROBE)]])
    tokens = torch.arange(positions.numel()).unsqueeze(0) % module.config.get_text_config().vocab_size
    with torch.no_grad():
        together = module(tokens, position_ids=positions).logits
        alone = [module(part).logits for part in tokens.split([len(each) for each in PROBE], dim=1)]
    difference: Tensor = (together - torch.cat(alone, dim=1)).abs().max()
    return bool(difference <= SAME * together.abs().max())


@cache
def _shape(text: str) -> ModelShape:
    """Count a config's model; its FLOPs in T tokens are taken to be a T + b T squared, beyond a fixed part."""
    config = json.loads(text)
    with torch.device("meta"):
        model = TransformersModel(config=config)
    num_blocks = max(1, len(model.blocks))
    counted = LogitsModel.shape(model)
    chunk = getattr(model.module.config, "chunk_size", None) or COUNTED_TOKENS
    step = max(1, min(chunk, model.max_context_tokens // 3))
    try:
        one, two, three = (_forward_flops(config, step * times) for times in (1, 2, 3))
    except Exception:  # noqa: BLE001  a class may read values, which fake tensors lack
        linear = sum(one.numel() for one in _matrices(model)[0])
        return replace(counted, num_matmul_parameters=linear, attention=(AttentionShape(0, 0),) * num_blocks)
    squared = (three - 2 * two + one) / (2 * step**2)
    per_token = (two - one) / step - 3 * squared * step
    each, rest = divmod(round(squared / 2), num_blocks)  # of scores and of values, in one head a block
    widths = [each + (rest if index == 0 else 0) for index in range(num_blocks)]
    attention = tuple(AttentionShape(1, width // 2, value_width=width - width // 2) for width in widths)
    num_matmul = round(per_token / 2)
    linear, experts = (sum(one.numel() for one in kind) for kind in _matrices(model))
    num_idle = max(0, linear + experts - num_matmul) if experts else 0  # of experts not chosen for a token
    return replace(
        counted,
        num_matmul_parameters=num_matmul,
        num_active_parameters=counted.num_parameters - num_idle,
        attention=attention,
    )


def _matrices(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights of linear layers, and stacks of experts' in one tensor."""
    linear = [part.weight for part in model.modules() if isinstance(part, nn.Linear)]
    convolved = {id(part.weight) for part in model.modules() if isinstance(part, nn.Conv1d)}
    return linear, [one for one in model.parameters() if one.ndim == 3 and id(one) not in convolved]


def _forward_flops(config: Mapping[str, Any], num_tokens: int) -> int:
    def on_cpu(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return sdpa_flop_count(query, key, value)

    def of_experts(rows: Any, experts: Any, *_: Any, **__: Any) -> int:
        return 2 * rows[0] * experts[-2] * experts[-1]

    operations = torch.ops.aten  # torch 2.13 has no formula of two
    formulas = {
        operations._scaled_dot_product_flash_attention_for_cpu: on_cpu,  # noqa: SLF001
        operations._grouped_mm: of_experts,  # noqa: SLF001
    }
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"), torch.no_grad():
        module = build_module(config, dtype=torch.bfloat16)  # fake experts take no other
        module.config.use_cache = False
        with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
            module(torch.zeros(1, num_tokens, dtype=torch.int64))
    return counter.get_total_flops()


def read_module(folder: Path, config: Mapping[str, Any]) -> TransformersModel:
    """Return the model of a folder with its weights, in the dtype of the files.

    Raises:
        ConfigurationError: As `build_module`.
        DataError: The files lack a weight, have another one, or one of another shape; tokens see later ones.
    """
    with torch.device("meta"):
        model = TransformersModel(config=config, path=str(folder))
    own: Any = model.module
    loaded, report = type(own).from_pretrained(
        folder,
        config=own.config,
        dtype="auto",
        use_safetensors=True,
        local_files_only=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    for fault in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := sorted(map(str, report[fault])):
            raise DataError(
                f"{folder} has {fault.replace('_', ' ')} for {model.name}: {names[0]} ({len(names)} in all)."
            )
    _require_blind_to_later_tokens(loaded)
    model.module = loaded
    return model


def write_module(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], folder: Path, *, max_shard_bytes: int
) -> None:
    """Write a folder as `save_pretrained` does."""
    with torch.device("meta"):
        module = build_module(config)
    module.load_state_dict(weights, assign=True)
    module.tie_weights()
    module.save_pretrained(folder, max_shard_size=max_shard_bytes)
    mode = (folder / "config.json").stat().st_mode
    for file in folder.glob("*.safetensors"):
        file.chmod(mode)  # safetensors 0.8 leaves its files to their owner alone
