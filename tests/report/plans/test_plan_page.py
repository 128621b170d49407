from dataclasses import replace

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.training_plan.communication import CommunicationVolume
from lmtrain.accounting.training_plan.plan import Advice, Plan
from lmtrain.report.plans.plan_page import page
from lmtrain.report.show import plain_text
from tests.accounting.training_plan.test_fit import MILLION, SETTING

BATCH = plan_batches(Batch(context_tokens=10, tokens_per_step=240))
FLOPS = flops_per_token(SETTING.facts.shape, 10)
PLAN = Plan(
    shape=SETTING.facts.shape,
    batch=BATCH,
    horizon=horizon(Budget(steps=10), tokens_per_step=240, num_active_parameters=MILLION, flops_per_token=FLOPS.palm),
    flops_per_token=FLOPS,
    components={"feed_forward": 900_000, "embedding": 100_000},
)


def test_what_is_not_known_says_so_and_is_no_zero():
    text = plain_text(page(PLAN, Advice((), is_possible=True), title="small"))
    assert "not known: the peak of the device is unknown" in text
    assert "GB" not in text
    sent = CommunicationVolume(gathered_bytes=2 * 10**9, reduced_bytes=10**9, bytes_per_second=None)
    assert "sent per step     3.0 GB from each device, at a rate that is not known" in plain_text(
        page(replace(PLAN, communication=sent), Advice((), is_possible=True), title="small")
    )
