"""`lmtrain scaling`: the scaling law of a sweep's runs, and its prediction for a larger budget."""

from dataclasses import asdict
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_quantity, parse_quantity
from lmtrain.cli.commands.model_flags import add_json
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.json_output import print_json
from lmtrain.report.scaling_study import (
    BEYOND,
    ScalingPrediction,
    ScalingStudy,
    study_of,
)
from lmtrain.run.compose.flag_parser import FlagParser

TERMS: Final = {
    "E": "irreducible", "A": "per_parameters", "B": "per_tokens",
    "alpha": "parameters_exponent", "beta": "tokens_exponent",
}  # fmt: skip


def scaling(words: list[str], *, program: str = "lmtrain scaling") -> int:
    """Fit a sweep's runs and print the law, the best sizes, and a prediction."""
    asked = _parser(program).parse_args(words)
    study = study_of(asked.sweep.absolute())
    predicted = study.predict(_flops(asked.flops, study))
    if asked.json:
        print_json(study.to_json() | {"predicted": asdict(predicted) | {"warning": predicted.warning}})
        return EXIT_DONE
    for line in [*_law_lines(study), *_prediction_lines(predicted)]:
        print(line)
    for name, reason in study.left_out.items():
        print(f"left out: {name}, {reason}")
    return EXIT_DONE


def _parser(program: str) -> FlagParser:
    parser = FlagParser(
        prog=program,
        description="Fit a scaling law to a sweep of sizes and budgets (experiment=isoflop), with 95% bands.",
        epilog="Exit codes: 0 fitted, 2 no such run, 4 the runs cannot be fitted.",
    )
    add = parser.add_argument
    add("sweep", type=Path, help="runs/sweep-ID, or a folder with runs below it")
    add("--flops", metavar="FLOPS", help=f"compute to predict for ({BEYOND:g} times the largest run's)")
    add_json(parser)
    return parser


def _flops(typed: str | None, study: ScalingStudy) -> float:
    flops = BEYOND * study.law.most_flops if typed is None else float(parse_quantity(typed, "--flops"))
    if flops <= 0:
        raise ConfigurationError(f"--flops: must be above 0, got {typed}.")
    return flops


def _law_lines(study: ScalingStudy) -> list[str]:
    law, isoflop = study.law, study.isoflop
    lines = [
        f"{study.name}: {len(study.points)} runs, {len(study.budgets)} budgets, loss in nats per token",
        "loss(N, D) = E + A / N^alpha + B / D^beta",
    ]
    for letter, name in TERMS.items():
        low, high = law.band(lambda surface, name=name: getattr(surface, name))
        lines.append(f"  {letter:<6} {getattr(law.surface, name):<10.4g} {low:.4g} to {high:.4g}")
    draws = f"bands: 95% of {len(law.draws)} draws of the runs"
    lines.append(f"  error  {law.residual:.2%} of a loss, root mean square; {draws}")
    for each in isoflop.minima:
        size, tokens = format_quantity(each.num_parameters), format_quantity(each.tokens)
        lines.append(f"best at {each.flops:.3g} FLOPs: {size} parameters on {tokens} tokens, loss {each.loss:.4f}")
    for budget, reason in isoflop.left_out.items():
        lines.append(f"no best size at {budget} FLOPs: {reason}")
    return lines


def _prediction_lines(predicted: ScalingPrediction) -> list[str]:
    low, high = predicted.loss_band
    size, tokens = format_quantity(predicted.num_parameters), format_quantity(predicted.tokens)
    lines = [
        f"predicted at {predicted.flops:.3g} FLOPs, {predicted.times_beyond:.3g} times the largest run's:",
        f"  {size} parameters on {tokens} tokens, loss {predicted.loss:.4f}, {low:.4f} to {high:.4f}",
    ]
    return lines + ([predicted.warning] if predicted.warning else [])
