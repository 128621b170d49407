"""Run every loss with each signature's shapes checked at run time; started as a process of its own.

The hook has to be in place before the losses are imported, and must not stay for other tests.
"""

from jaxtyping import TypeCheckError, install_import_hook

with install_import_hook("lmtrain.losses", "beartype.beartype"):
    import torch

    from lmtrain.losses.chunked import ChunkedCrossEntropy
    from lmtrain.losses.cross_entropy import CrossEntropy
    from lmtrain.losses.linear import LinearCrossEntropy

from lmtrain.models.head import OutputHead

LOSSES = (
    CrossEntropy,
    ChunkedCrossEntropy,
    *([LinearCrossEntropy] if hasattr(torch.nn, "LinearCrossEntropyOptions") else []),
)


def run(loss: type, soft_cap: float | None) -> None:
    hidden = torch.randn(2, 12, 8, requires_grad=True)
    targets = torch.randint(31, (2, 12))
    score, head = loss(z_loss_weight=0.1), OutputHead(torch.randn(31, 8, requires_grad=True), soft_cap)
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            score(head, hidden, targets).objective.backward()
            with torch.no_grad():
                score(head, hidden, targets)
    try:
        score(head, hidden, targets[:, :-1])
    except TypeCheckError:
        print(f"{loss.__name__}: shapes hold, and one that does not is noticed")


for kind in LOSSES:
    run(kind, None)
run(ChunkedCrossEntropy, 5.0)
