"""The audit of a run's past step, or of the first step of a config: FLOPs of its real batch, without weights."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.machine.hardware import one_device
from lmtrain.accounting.machine.number_formats import utilization_format
from lmtrain.accounting.model.flop_audit import AuditedBatch, FlopAudit, Pace
from lmtrain.accounting.model.flops import FlopsPerToken, flops_per_token
from lmtrain.data.rows import RowBatch
from lmtrain.errors import ConfigurationError
from lmtrain.report.runs.facts import RunRecord
from lmtrain.run.planning.measured_model import model_builder
from lmtrain.run.planning.plan import planned_runs
from lmtrain.run.planning.prepared_tokens import prepared_folders
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.stored_runs.trained_step import first_rows, trained_step
from lmtrain.run.validators.task import objective_facts
from lmtrain.simulate.counted_operators import count_fake_step, formula_products
from lmtrain.tracking.run_log import furthest


@dataclass(frozen=True, kw_only=True)
class AskedPace:
    """Tokens per second, those without loss too, and a device of the hardware table; None: the run's or the plan's."""

    tokens_per_second: float | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        """Refuse a device that is not one of the table, before a model is built."""
        if self.device is not None:
            one_device(self.device)

    def peak(self, config: RunConfig, known: float | None) -> float | None:
        """Return the peak of one device for the config's products; `known` is without an asked device."""
        if self.device is None:
            return known
        matmul = utilization_format(planned_setting(config).bytes_of.matmul)
        found = Cluster(name="audit", device=one_device(self.device).name).peak(matmul)
        if found is None:
            raise ConfigurationError(
                f"--device {self.device}: has no known peak in {matmul}; choose another precision."
            )
        return found.flops


def audit_run(
    run: Path, *, asked: AskedPace, step: int | None = None, data: Path | None = None, allowed: Sequence[str] = ()
) -> tuple[str, FlopAudit]:
    """Audit a step of a run, None: the newest, and return its title too."""
    record = RunRecord(run)
    found = trained_step(run, step or max(1, furthest(record.points).step), data=data, allowed=allowed)
    reported = record.plan.get("flops_per_token")
    audit = _audit(found.config, found.batch, FlopsPerToken(**reported) if reported else None, found.rows)
    peak = asked.peak(found.config, record.plan.get("peak", {}).get("flops"))
    measured = record.tokens_per_second and record.tokens_per_second / record.loss_share
    per_second = asked.tokens_per_second or measured
    if peak and per_second:
        share = 1.0 if asked.tokens_per_second else record.loss_share
        devices = record.mean_devices
        pace = Pace(tokens_per_second=per_second, peak_flops=peak, num_devices=devices, counted_share=share)
        audit = replace(audit, pace=pace)
    return f"step {found.step:,} of {run}", audit


def audit_words(words: list[str], *, asked: AskedPace) -> Iterator[tuple[str, FlopAudit]]:
    """Audit the first step of a command's config, or of each of a sweep, with its title; nothing is prepared."""
    for planned in planned_runs(words):
        config, plan = planned.config, planned.plan
        folders = prepared_folders(config)
        is_known = all(folder is not None and Path(folder).is_dir() for folder in folders)
        folder = folders[0] if "folder" in config.data else None
        rows = first_rows(config, plan.batch, folder, num_steps=plan.horizon.steps) if is_known else None
        audit = _audit(config, plan.batch, plan.flops_per_token, rows)
        peak, per_second = asked.peak(config, plan.peak_flops), asked.tokens_per_second
        if per_second and not peak:
            raise ConfigurationError("--tokens-per-second needs a known peak; add --device NAME or cluster.peak_flops.")
        if peak and per_second:
            pace = Pace(tokens_per_second=per_second, peak_flops=peak, num_devices=plan.batch.num_ranks)
            audit = replace(audit, pace=pace)
        yield planned.title, audit


def _audit(config: RunConfig, batch: BatchPlan, flops: FlopsPerToken | None, rows: RowBatch | None) -> FlopAudit:
    if objective_facts(config) is not None:
        raise ConfigurationError("task: must be one with the loss of next tokens (pretrain, sft) for an audit.")
    setting, masks = planned_setting(config), bool(config.packing.get("document_mask"))
    with torch.device("meta"):
        model = model_builder(config, setting)()
    recompute = config.recompute.checked(config.allowed).build() if setting.recompute.recomputes else None
    shape, of_step = model.shape(), (batch.sequences_per_step, batch.context_tokens)
    return FlopAudit(
        shape=shape,
        batch=AuditedBatch(
            num_tokens=batch.tokens_per_step,
            context_tokens=batch.context_tokens,
            documents=None if rows is None or rows.documents is None else document_lengths(rows.documents),
            loss_share=1.0 if rows is None or rows.loss_mask is None else float(rows.loss_mask.mean()),
            is_real=rows is not None,
        ),
        flops=flops or flops_per_token(shape, batch.context_tokens),
        products=formula_products(model, shape),
        counted=count_fake_step(model, of_step, masks_documents=masks, recompute=recompute),
    )


def document_lengths(documents: NDArray[np.int32]) -> dict[int, int]:
    """Count the documents [G, T] of rows by their tokens in a row."""
    is_first = np.ones(documents.shape, np.bool_)
    is_first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    lengths = np.diff(np.append(np.flatnonzero(is_first), is_first.size))
    return dict(Counter(lengths.tolist()))
