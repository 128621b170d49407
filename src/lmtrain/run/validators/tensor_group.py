"""Parts of a run unfit for ranks with a share of each product, or of each sequence, decided from a config alone."""

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.options.parts import LossFacts
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of


def require_parts(config: RunConfig, shape: ModelShape | None = None) -> None:
    """Refuse a model whose layers do not divide, and a loss over a whole vocabulary, sharded over a tensor group.

    `shape` is the model's, where known: not every model has its heads among its settings.

    Raises:
        ConfigurationError: Naming the nearest possible part.
    """
    spread, model = config.spread, config.model
    if spread.tensor_ranks == spread.context_ranks == 1:
        return
    from lmtrain.parallel import group_sizes  # of such strategies alone

    settings = {name: size for name in group_sizes.SIZES if type(size := model.get(name)) is int}
    sizes = {"num_heads": shape.attention[0].num_heads} | settings if shape and shape.attention else settings
    over_width = model.get("qk_norm_over") == "width"
    if spread.context_ranks > 1:
        smears_keys = model.get("key_smear") is True
        group_sizes.require_shares(spread.context_ranks, sizes, smears_keys=smears_keys, norms_all_heads=over_width)
    if spread.tensor_ranks == 1:
        return
    loss = facts_of(config.loss.values, LossFacts, allowed=config.allowed) or LossFacts()
    if not loss.takes_shards:
        raise ConfigurationError(
            f"loss={config.loss.target.split('.')[-2]} reads the whole vocabulary, and under strategy="
            f"{config.strategy.word} a rank has a shard of it; nearest valid: "
            f"{one_of(words_of(LossFacts, lambda other: other.takes_shards))}."
        )
    has_experts = model.node("experts") is not None
    group_sizes.require_parts(spread.tensor_ranks, sizes, has_experts=has_experts, norms_all_heads=over_width)
