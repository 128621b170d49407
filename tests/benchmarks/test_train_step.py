"""The ruler: every loop is held against our own loops that train the same architecture, of as many parameters."""

from pathlib import Path

import pytest

from benchmarks.harness.hopper.cases import meta_model
from benchmarks.harness.train_step import driver, table
from benchmarks.harness.train_step.task import Task
from benchmarks.peers.train_step.ours import model_words
from benchmarks.questions import train_step
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.run.compose.compose import compose_config

pytestmark = pytest.mark.benchmarks

SMALL = {"num_layers": 2, "num_heads": 3, "vocab_size": 1024, "context_tokens": 128, "num_sequences": 2}


def task_of(**shape):
    """Return a task of a shape, on a CPU, eager."""
    return Task(
        **(SMALL | shape), device="cpu", precision="fp32", is_compiled=False, threads=1, warm_up_steps=2, turn_steps=2,
        max_steps=100, data_root="", tokens_file="", peers="", scratch="",
    )  # fmt: skip


def shape_of(task, architecture) -> ModelShape:
    """Return the shape of our model of an architecture."""
    return meta_model(compose_config(model_words(task, architecture))).shape()


def contestant(name, *seconds, skipped=None):
    """Return a loop that took these seconds a step, turn by turn."""
    one = driver.Contestant(name, process=None, orders=None, answers=None, console=Path())  # pyright: ignore
    one.facts |= {"num_parameters": 7, "peak_bytes": 8e6, "first_step_seconds": 9.0, "host_syncs": 0.0, "given": "all"}
    one.facts |= {"skipped": skipped} if skipped else {}
    one.starts = [[{"cpu_seconds": each, "wall_seconds": each, "helper_cpu_seconds": 0.0} for each in seconds]]
    return one


def rows_of(*contestants):
    """Return the rows of a measurement by the loop's name."""
    return {row["loop"]: row for row in table.rows(contestants, task_of(), peak_flops=1e12, matmul_flops=1e12)}


@pytest.mark.parametrize("shape", train_step.SHAPES)
def test_our_llama_of_every_shape_multiplies_what_the_ruler_counts(shape):
    task = task_of(**train_step.SHAPES[shape])
    counted = task.flops.palm - 12 * task.num_layers * task.width * task.context_tokens
    assert shape_of(task, "llama").num_matmul_parameters * 6 == counted


@pytest.mark.parametrize("is_tied", [True, False])
def test_our_gpt2_has_nanogpt_s_parameters(is_tied):
    task = task_of(is_tied=is_tied)
    width, layers = task.width, task.num_layers
    tables = (task.vocab_size * (1 if is_tied else 2) + task.context_tokens) * width
    assert shape_of(task, "gpt2").num_parameters == tables + layers * (12 * width**2 + 2 * width) + width


def test_our_nano_has_nanochat_s_parameters():
    assert shape_of(task_of(), "nano").num_parameters == 1_474_626, "what nanochat's own model of this shape counts"


def test_ratios_are_medians_of_turns_to_our_loop_of_the_same_architecture():
    found = rows_of(
        contestant("trainer", 1.0, 2.0, 4.0),
        contestant("litgpt", 1.5, 2.0, 12.0),
        contestant("trainer_gpt2", 2.0, 2.0, 2.0),
        contestant("nanogpt", 1.0, 1.0, 1.0),
        contestant("nanochat", 1.0, 1.0, 1.0),
    )
    assert found["litgpt"]["against_trainer"]["median"] == 1.5
    assert found["nanogpt"]["against_trainer"]["median"] == 0.5
    assert found["nanochat"]["against_trainer"] is None
    assert found["litgpt"]["against_bare"] is None
