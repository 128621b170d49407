"""Parts of a run unfit for its ranks: their number, shares of a product or a sequence, separate workers."""

import re
from typing import Any

from lmtrain.accounting.model.memory import WAITS
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.parts import LossFacts, RecomputeFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import wrong
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import OUR_MODULE, RunConfig
from lmtrain.run.schema.check import TARGET
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.signatures import default_settings, gives_nothing
from lmtrain.run.settings import TrainerSettings
from lmtrain.run.validators.task import objective_facts


def require_ranks(config: RunConfig) -> None:
    """Compare the number of ranks with the strategy's, and check their wait for one another."""
    spread, num_ranks = config.spread, config.num_ranks
    seconds = config.strategy.get("timeout_seconds")
    if seconds is not None:  # gloo waits forever for 0 s
        require_number("strategy.timeout_seconds", seconds, at_least=1, at_most=1e6, usual="600")
    spread.require_ranks(num_ranks)
    is_chosen_later = spread.chooses and num_ranks > 1 and config.cluster.device_bytes is not None
    if config.precision.get("gather") == "fp8" and spread.num_shards(num_ranks) == 1 and not is_chosen_later:
        rule = f"bf16 without shards of weights (strategy={config.strategy.word} of {format_count(num_ranks, 'rank')})"
        raise wrong("precision.gather", rule, "fp8", "precision.gather=bf16")
    if spread.most_ranks is not None and num_ranks > spread.most_ranks:
        same = words_of(ModelSpread, lambda other: other.takes_many and other.equals_one_process)
        raise wrong("strategy", f"one for {num_ranks} ranks", config.strategy.word, one_of(same))


def require_products(config: RunConfig) -> None:
    """Refuse a precision whose products the cluster's device has not."""
    device, facts = config.cluster.known_device, config.facts(PrecisionFacts, has_bf16=True)
    if (
        config.cluster.peak_flops is None
        and device is not None
        and facts is not None
        and device.peak_flops(facts.bytes_of.matmul) is None
    ):
        rule = f"one with products of {device.name}, which has none in {facts.bytes_of.matmul}"
        raise wrong("precision", rule, config.precision.word, facts.instead or "precision=auto")


def require_cluster(config: RunConfig) -> None:
    """Refuse a Trainer unlike the cluster: a plan and a strategy would count other nodes."""
    trainer, cluster = config.trainer, config.cluster
    for key, value, same, planned in (
        ("trainer.num_nodes", trainer.num_nodes, "cluster.num_nodes", cluster.num_nodes),
        ("trainer.devices", trainer.devices, "cluster.devices_per_node", cluster.devices_per_node),
    ):
        if value != planned:
            is_of_nodes = key == "trainer.devices" and value > planned > 1 and value % planned == 0
            nearest = f"cluster.num_nodes={value // planned}" if is_of_nodes else f"{same}={value}"
            raise wrong(key, f"{same}={planned}, the cluster's", value, f"{nearest} without {key}")


def require_nodes_enough(config: RunConfig) -> None:
    """Refuse more devices than the nodes of a named cluster have; fewer are a part of them."""
    trainer, cluster = config.trainer, config.cluster
    is_over = trainer.devices > cluster.devices_per_node or trainer.num_nodes > cluster.num_nodes
    if cluster.device is not None and is_over:
        require_cluster(config)


def require_launcher(trainer: TrainerSettings, *, is_launched: bool) -> None:
    """Refuse several nodes where no launcher started this process."""
    nodes = trainer.num_nodes
    if not is_launched and nodes > 1:
        command = f"torchrun --nnodes={nodes} --nproc-per-node={trainer.devices}, or srun, on every node"
        raise wrong("trainer.num_nodes", "1 without a launcher", nodes, command)


def require_parts(config: RunConfig, shape: ModelShape | None = None) -> None:
    """Refuse a model whose layers do not divide, and a loss over a whole vocabulary, sharded over a tensor group.

    `shape` is the model's, where known: not every model has its heads among its settings.
    """
    spread, model = config.spread, config.model
    if spread.tensor_ranks == spread.context_ranks == spread.expert_ranks == 1:
        return
    from lmtrain.parallel import group_sizes  # of such strategies alone

    if spread.expert_ranks > 1:
        _require_expert_shares(config)
    for name in group_sizes.UNSLICED if spread.context_ranks > 1 else ():
        if model.get(name) or model.node(name) is not None:
            raise group_sizes.no_cuts(name)
    if spread.tensor_ranks == 1:
        return
    rule = f"that takes a shard of the vocabulary, with strategy={config.strategy.word}"
    config.require_option(LossFacts, lambda loss: loss.takes_shards, rule, unstated=LossFacts())
    heads = {"num_heads": shape.attention[0].num_heads} if shape and shape.attention else {}
    group_sizes.require_parts(spread.tensor_ranks, heads | _sizes_to_cut(model))


def _sizes_to_cut(model: Node) -> dict[str, int]:
    """Return the sizes of a model that a tensor group cuts, as far as they are among its settings."""
    from lmtrain.parallel import group_sizes

    experts, recurrent = _settings_of(model, "experts"), _settings_of(model, "recurrent_layers")
    values = {f"experts.{name}": size for name, size in experts.items()}
    values |= {f"recurrent_layers.{name}": size for name, size in recurrent.items()}
    cuts_width = recurrent and not any(name in values for name in group_sizes.OF_STATES)  # the channels of convolutions
    names = group_sizes.SIZES if cuts_width else group_sizes.SIZES[:-1]
    values |= model.values
    return {name: size for name in names if type(size := values.get(name)) is int}


def _require_expert_shares(config: RunConfig) -> None:
    """Refuse experts that groups of ranks cannot share out, and the ranks with the same ones not cut further."""
    from lmtrain.parallel import group_sizes

    spread, experts = config.spread, _settings_of(config.model, "experts")
    group_sizes.require_expert_shares(spread.expert_ranks, experts.get("num_experts"))
    if (most := config.experts.imbalance) > spread.expert_ranks:
        rule = f"at most strategy.expert_size={spread.expert_ranks}, with all rows on one rank"
        raise wrong("experts.imbalance", rule, most, f"experts.imbalance={spread.expert_ranks}")
    width, inner = config.model.get("width"), config.model.get("feed_forward_width")
    if type(width) is int and type(inner) is int:
        matrices = {"gate_up": (2 * inner, width), "down": (width, inner)}
        biases = {"gate_up_bias": (2 * inner,), "down_bias": (width,)} if experts.get("biases") else {}
        num_shards = max(1, spread.num_shards(config.num_ranks) // spread.expert_ranks)
        uncut = width if spread.tensor_ranks > 1 else None
        group_sizes.require_expert_sides(spread.expert_ranks, num_shards, matrices | biases, uncut=uncut)


def _settings_of(model: Node, part: str) -> dict[str, Any]:
    """Return the settings of a part of a model, its code's defaults among them; empty for a model without it."""
    node = model.node(part)
    return {} if node is None else {**default_settings(node.target), **node.values}


def require_stages(config: RunConfig) -> None:
    """Refuse parts that a pipeline's stages do not train with."""
    pipeline = config.spread.pipeline
    if pipeline.num_stages == 1:
        return
    from lmtrain.parallel import group_sizes  # of such strategies alone

    group_sizes.require_one_future_token(config.model.get("num_future_tokens") or 0)
    strategy = f"with strategy={config.strategy.word}"
    config.require_option(
        PrecisionFacts,  # copies of a tied table round alike, no scale is shared
        lambda facts: facts.bytes_of.weights == 4 and facts.bytes_of.matmul not in ("fp8", "fp16"),
        f"with fp32 weights and no scales {strategy}",
        has_bf16=True,
    )
    if config.health.recompute_every_steps is not None:
        raise wrong("health.recompute_every_steps", f"null {strategy}", config.health.recompute_every_steps, "null")
    if pipeline.schedule not in WAITS:
        return
    schedule = f"with strategy.schedule={pipeline.schedule}, which goes through a stage twice"
    compiles, recomputes = config.compilation.compiles, config.facts(RecomputeFacts) or RecomputeFacts(recomputes=False)
    for node, is_on in ((config.compile, compiles), (config.recompute, recomputes.recomputes)):
        if is_on:
            raise wrong(node.key, f"none {schedule}", node.word, f"{node.key}=none")


def require_workers(config: RunConfig) -> None:
    """Refuse parts that need all ranks' weights or losses at every step under separate workers (DiLoCo)."""
    if config.spread.meets_every_steps is None:
        return
    strategy = f"with strategy={config.strategy.word}, whose workers train apart"
    for node in (config.spikes, config.weight_average):
        if not gives_nothing(node.target):
            raise wrong(node.key, f"none {strategy}", node.word, f"{node.key}=none")
    evaluated = f"that trains what it evaluates {strategy}"
    config.require_option(OptimizerFacts, lambda optimizer: not optimizer.averages_steps, evaluated)
    whole = f"with fp32 weights {strategy}"
    config.require_option(PrecisionFacts, lambda precision: precision.bytes_of.weights == 4, whole, has_bf16=True)


def require_groups(config: RunConfig) -> None:
    """Refuse parts that the replica groups of a lighthouse do not share: each step is a sum over its micro-batches."""
    lighthouse = config.trainer.lighthouse
    if lighthouse is None:
        return
    if not re.fullmatch(r"http://[^/:]+:\d+", lighthouse):
        instead = f"http://{lighthouse}" if re.fullmatch(r"[^/:]+:\d+", lighthouse) else ""
        raise wrong("trainer.lighthouse", "http://HOST:PORT, the address of torchft_lighthouse", lighthouse, instead)
    rule = "with trainer.lighthouse"
    config.require_option(
        ModelSpread,
        lambda spread: spread.pipeline.num_stages == 1 and spread.meets_every_steps is None,
        f"without stages and separate workers {rule}",
    )
    if (objective := objective_facts(config)) is not None:
        raise wrong("task", f"pretrain or sft {rule}", objective.task, "task=sft")
    if config.module.target != OUR_MODULE[TARGET]:
        raise wrong("module", f"lmtrain's {rule}", config.module.target, "module=causal_lm")
    for name in ("hours", "usd"):  # each group has a clock and a last step
        if getattr(config.budget, name) is not None:
            raise wrong(f"budget.{name}", f"null {rule}", getattr(config.budget, name), "budget=tokens")
