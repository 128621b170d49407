"""Numbers of ranks outside a strategy's, and waits for them, decided from a config alone."""

from typing import Final

from lmtrain.accounting.options.ranges import Range
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.settings import TrainerSettings

TIMEOUT: Final = Range(low=1.0, high=1e6, usual="600", is_open=False)  # gloo waits for ever for 0 s


def require_ranks(config: RunConfig) -> None:
    """Compare the number of ranks with the strategy's, and look at their wait for one another.

    Raises:
        ConfigurationError: Naming the strategies for that many, or the nearest number.
    """
    spread, num_ranks = config.spread, config.num_ranks
    seconds = config.strategy.get("timeout_seconds")
    if seconds is not None and (problem := TIMEOUT.refusal(seconds)):
        raise ConfigurationError(f"strategy.timeout_seconds={seconds} is {problem}.")
    spread.require_ranks(num_ranks)
    if spread.most_ranks is not None and num_ranks > spread.most_ranks:
        same = words_of(ModelSpread, lambda other: other.takes_many and other.equals_one_process)
        raise ConfigurationError(
            f"strategy={config.strategy.word} trains on {spread.most_ranks} rank, not {num_ranks} (trainer.devices x "
            f"trainer.num_nodes); use {one_of(same)}."
        )


def require_cluster(config: RunConfig) -> None:
    """Refuse a Trainer unlike the cluster: a plan and a strategy would count other nodes.

    Raises:
        ConfigurationError: Naming the cluster's own key.
    """
    trainer, cluster = config.trainer, config.cluster
    for key, value, same, planned in (
        ("trainer.num_nodes", trainer.num_nodes, "cluster.num_nodes", cluster.num_nodes),
        ("trainer.devices", trainer.devices, "cluster.devices_per_node", cluster.devices_per_node),
    ):
        if value != planned:
            is_of_nodes = key == "trainer.devices" and planned > 1 and value > planned and value % planned == 0
            nearest = f"cluster.num_nodes={value // planned}" if is_of_nodes else f"{same}={value}"
            raise ConfigurationError(
                f"{key}={value} but {same}={planned}: the Trainer follows the cluster; nearest valid: {nearest} "
                f"without {key}."
            )


def require_nodes_enough(config: RunConfig) -> None:
    """Refuse more devices than the nodes of a named cluster have; fewer are a part of them.

    Raises:
        ConfigurationError: Naming the cluster's own key.
    """
    trainer, cluster = config.trainer, config.cluster
    is_over = trainer.devices > cluster.devices_per_node or trainer.num_nodes > cluster.num_nodes
    if cluster.device is not None and is_over:
        require_cluster(config)


def require_launcher(trainer: TrainerSettings, *, is_launched: bool) -> None:
    """Refuse several nodes where no launcher started this process.

    Raises:
        ConfigurationError: With the launcher's command.
    """
    nodes = trainer.num_nodes
    if not is_launched and nodes > 1:
        raise ConfigurationError(
            f"trainer.num_nodes={nodes} needs a launcher on every node; run the same command under "
            f"torchrun --nnodes={nodes} --nproc-per-node={trainer.devices} (or SLURM's srun)."
        )
