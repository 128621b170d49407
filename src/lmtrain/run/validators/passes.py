"""A run's validations, and the callbacks in need of them."""

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.source_signatures import OURS


def require_passes(config: RunConfig) -> None:
    """Refuse a callback in need of validations, in a run without any.

    Raises:
        ConfigurationError: There is no validation, or it measures before and after the run alone, or something else.
    """
    facts = _facts(config)
    in_need = [(key, said.judges) for key, said in facts if said.judges]
    readers = [(key, said.reads) for key, said in facts if said.reads]
    if not in_need:
        return
    judge, metric = in_need[0]
    if not readers:
        from lmtrain.run.compose.group_options import beside_ordinary  # where one is wrong alone

        raise ConfigurationError(
            f"{judge} acts on validations and there are none; nearest valid: {beside_ordinary(config.callbacks)}, "
            "which has callbacks.validation."
        )
    key, passes = readers[0]
    if passes.num_passes is None and passes.every_steps is None:
        raise ConfigurationError(
            f"{judge} acts on validations during the run, and {key} measures before and after it alone; "
            f"set {key}.num_passes or {key}.every_steps."
        )
    from lmtrain.run.validators.logged_metrics import logged_metrics  # where a callback judges

    measured = [name for name in logged_metrics(config) if name.startswith("validation/")]
    if metric not in measured and all(node.target.startswith(OURS) for node in config.callbacks.values()):
        raise ConfigurationError(
            f"{judge}.metric={metric} is none of the validation's: {', '.join(measured)}.{suggest(metric, measured)}"
        )


def patience_line(config: RunConfig, num_steps: int) -> str | None:
    """Return a warning of a patience longer than the validations of a run of so many steps; None without."""
    facts = _facts(config)
    passes = next((said.reads for _, said in facts if said.reads), None)
    patient = next(((key, said.patience) for key, said in facts if said.patience is not None), None)
    if passes is None or patient is None:
        return None
    (key, patience), during = patient, passes.during(num_steps)
    if patience < during:
        return None
    fix = f"{key}.patience={during - 1}" if during > 1 else "more validations, or a longer budget"
    return (
        f"WARNING: {key}.patience={patience} never ends this run early: of its {format_count(during, 'validation')} "
        f"after the first step the last one is at its end; nearest with an effect: {fix}."
    )


def _facts(config: RunConfig) -> list[tuple[str, CallbackFacts]]:
    """Return the facts of the callbacks by their keys, silent ones left out."""
    found = [
        (node.key, facts_of(node.values, CallbackFacts, allowed=config.allowed, key=node.key))
        for node in config.callbacks.values()
    ]
    return [(key, said) for key, said in found if said]
