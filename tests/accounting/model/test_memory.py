from dataclasses import replace

import pytest

from lmtrain.accounting.model.memory import HostMemory, TrainedParameters, device_memory
from tests import facts


def plain(num_parameters):
    return TrainedParameters(
        num_total=int(num_parameters), num_hidden_matrix=0, num_largest_block=0, num_outside_blocks=0
    )


def memory_of(num_parameters, *, precision="fp32", optimizer="adamw", **settings):
    return device_memory(
        plain(num_parameters),
        precision=facts.precision(precision).bytes_of,
        optimizer=facts.optimizer(optimizer).state,
        **settings,
    )


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [("sgd", 8), ("momentum", 12), ("adagrad", 12), ("rmsprop", 12), ("adamw", 16)],
)
def test_fp32_bytes_per_parameter(optimizer, bytes_per_parameter):
    assert memory_of(1_000_000_000, optimizer=optimizer).static == bytes_per_parameter * 10**9


@pytest.mark.parametrize(("precision", "bytes_per_parameter"), [("bf16_true", 8), ("fp32", 16), ("bf16_mixed", 18)])
def test_bytes_per_parameter_by_precision(precision, bytes_per_parameter):
    assert memory_of(10**9, precision=precision).static == bytes_per_parameter * 10**9


@pytest.mark.parametrize(("num_parameters", "total", "num_h100"), [(70e9, 1_120e9, 14), (405e9, 6.48e12, 81)])
def test_large_models_need_the_known_number_of_h100(num_parameters, total, num_h100):
    assert memory_of(num_parameters).static == total
    assert memory_of(num_parameters, num_shards=num_h100).static <= 80e9
    assert memory_of(num_parameters, num_shards=num_h100 - 1).static > 80e9


def test_sharding_gathers_what_is_outside_the_blocks_and_two_blocks_in_the_compute_format():
    parameters = TrainedParameters(num_total=1000, num_hidden_matrix=0, num_largest_block=100, num_outside_blocks=50)
    settings = {"precision": facts.precision("bf16_mixed").bytes_of, "optimizer": facts.optimizer("adamw").state}
    assert device_memory(parameters, **settings).gathered == 0
    assert device_memory(parameters, num_shards=3, **settings).gathered == (50 + 2 * 100) * 2
    assert device_memory(parameters, num_shards=3, **settings).weights == 334 * 4


def test_fsdp_sends_the_gradients_outside_the_blocks_together_from_a_copy():
    parameters = TrainedParameters(num_total=1000, num_hidden_matrix=0, num_largest_block=10, num_outside_blocks=500)
    settings = {"precision": facts.precision("bf16_mixed").bytes_of, "optimizer": facts.optimizer("adamw").state}
    sent = device_memory(parameters, num_shards=2, keeps_gradients=False, **settings)
    assert (sent.gathered, sent.workspace, sent.moment) == (0, 500 * (2 + 4), "the last message of gradients")


def test_a_cpu_holds_its_process_the_copy_of_a_save_and_the_holes_of_its_heap():
    host = HostMemory(process_bytes=700, heap_share=0.5, workspace_heap_share=0.9, snapshot_from_bytes=12_000)
    memory = memory_of(1000, activations=5000, workspace=300, host=host)
    assert (memory.process, memory.snapshot, memory.margin) == (700, 12_000, 2500 + 270)
    assert memory.total == memory.static + 5300 + 700 + 12_000 + 2770
    mapped = memory_of(1000, activations=5000, workspace=3 << 30, host=host)  # its tensors of 1 GiB leave no holes
    assert mapped.margin == 2500
    for least in (12_001, None):
        assert memory_of(1000, host=replace(host, snapshot_from_bytes=least)).snapshot == 0
