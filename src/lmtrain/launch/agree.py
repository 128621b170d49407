"""All ranks train the same thing, or none does: compare one short text over the ranks before training."""

from lmtrain.errors import ConfigurationError
from lmtrain.parallel.all_ranks import on_all_ranks


def agree_on(hash_text: str, *, what: str = "configuration") -> None:
    """Compare a hash over all ranks; every rank returns or every rank raises.

    Without an initialised process group, or with one rank, there is nothing to compare.

    Raises:
        ConfigurationError: The hashes differ; the message names them and their ranks.
    """
    hashes = on_all_ranks(hash_text)
    if len(set(hashes)) == 1:
        return
    by_hash = {text: [rank for rank, found in enumerate(hashes) if found == text] for text in dict.fromkeys(hashes)}
    found = "; ".join(f"{text} on {_rank_names(ranks)}" for text, ranks in by_hash.items())
    raise ConfigurationError(
        f"the ranks do not have the same {what}: {found}; "
        "give every rank the same command, overrides and files, or let lmtrain start the ranks (trainer.devices)."
    )


def _rank_names(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"ranks {shown}{' ...' if len(ranks) > 8 else ''}"
