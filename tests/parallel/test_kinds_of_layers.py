"""Each further kind of layer on two ranks, held to a single process: sharded by FSDP, and cut over a tensor group."""

import pytest

from tests.parallel.strategy_parity import CLIP, Found, require_same, trained

KINDS = ("latent", "sinks", "delta", "convolution", "after", "capped")
STEP = {"optimizer": "adamw", "loss": "plain", "micro_batch_sequences": 4}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Each in one process, in micro-batches of four sequences: experts are balanced within one."""
    cases = [STEP | {"model": kind, "strategy": "single"} for kind in KINDS]
    return dict(zip(KINDS, trained(tmp_path_factory.mktemp("alone"), cases), strict=True))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Each over two ranks of FSDP, a micro-batch of four sequences each."""
    cases = [STEP | {"model": kind, "strategy": "fsdp", "recompute": kind == "sinks"} for kind in KINDS]
    return dict(zip(KINDS, trained(tmp_path_factory.mktemp("fsdp"), cases, num_ranks=2), strict=True))


@pytest.mark.distributed
@pytest.mark.parametrize("kind", KINDS)
def test_fsdp_trains_as_one_process(alone: dict[str, Found], sharded: dict[str, Found], kind: str) -> None:
    require_same(sharded[kind], alone[kind])
    assert min(alone[kind]["norms"].values()) > CLIP, "every step is clipped"
