"""`lmtrain scaling`: the scaling law of a sweep's runs, and its prediction for a larger budget."""

import json
from dataclasses import asdict
from pathlib import Path

from lmtrain.accounting.quantities import format_quantity, parse_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.report.runs.find import find_run
from lmtrain.report.scaling_chart import scaling_chart
from lmtrain.report.scaling_law import optimum
from lmtrain.report.scaling_study import (
    BEYOND,
    HeldOutRun,
    ScalingPrediction,
    ScalingStudy,
    equal_loss_flops,
    study_of,
)
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.atomic_files import write_text


def scaling(words: list[str], *, program: str = "lmtrain scaling") -> int:
    """Fit a sweep's runs and print the law, the best sizes, and a prediction."""
    arguments = _parser(program).parse_args(words)
    if arguments.plot and not arguments.plot.absolute().parent.is_dir():
        raise ConfigurationError(f"--plot {arguments.plot}: there is no folder {arguments.plot.parent}; create it.")
    held_out_run = find_run(arguments.held_out) if arguments.held_out else None  # refused before the fits
    study = study_of(arguments.sweep.absolute(), needs_minima=not arguments.law_only, without=held_out_run)
    predicted = study.predict(_flops(arguments.flops, study))
    held_out = study.hold_out(held_out_run) if held_out_run else None
    beside = study_of(arguments.beside.absolute(), needs_minima=not arguments.law_only) if arguments.beside else None
    speedup = _speedup(study, beside) if beside else None
    if arguments.plot:
        write_text(arguments.plot, f"{scaling_chart(study, held_out)}\n")
    if arguments.json:
        print(json.dumps({
            **study.to_json(),
            "predicted": {**asdict(predicted), "warning": predicted.warning},
            "held_out": None if held_out is None else {**asdict(held_out), "is_within": held_out.is_within},
            "speedup": speedup,
        }))  # fmt: skip
    else:
        _print(study, predicted, held_out)
        if speedup is not None:
            print(f"compute of {arguments.beside} for the same loss, at the largest run's: {speedup:.3g} times")
    return 0


def _parser(program: str) -> FlagParser:
    parser = FlagParser(
        prog=program,
        description="Fit a scaling law to a sweep of sizes and budgets (experiment=isoflop), with 95% bands.",
        epilog="Exit codes: 0 fitted, 2 no such run, 4 the runs cannot be fitted.",
    )
    parser.add_argument("sweep", type=Path, help="runs/sweep-ID, or a folder with runs below it")
    parser.add_argument(
        "--flops", metavar="FLOPS", help=f"predict for this compute; {BEYOND:g} times the largest run's"
    )
    parser.add_argument("--held-out", type=Path, metavar="RUN", help="a larger run, held against its prediction")
    parser.add_argument("--beside", type=Path, metavar="SWEEP", help="another recipe: its compute for an equal loss")
    parser.add_argument("--law-only", action="store_true", help="fit the law also where no budget has a best size")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw runs, law and minima into a file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _flops(typed: str | None, study: ScalingStudy) -> float:
    flops = BEYOND * study.law.most_flops if typed is None else float(parse_quantity(typed, "--flops"))
    if flops <= 0:
        raise ConfigurationError(f"--flops {typed} is not above 0; nearest valid: --flops {study.law.most_flops:.3g}.")
    return flops


def _speedup(study: ScalingStudy, beside: ScalingStudy) -> float:
    """Return the other recipe's compute for the loss at a study's largest compute, in times of that."""
    flops = study.law.most_flops
    loss = study.law.surface.loss(*optimum(study.law.surface, flops))
    return equal_loss_flops(beside.law.surface, loss) / flops


def _print(study: ScalingStudy, predicted: ScalingPrediction, held_out: HeldOutRun | None) -> None:
    law = study.law
    print(f"{study.name}: {len(study.points)} runs, {len(study.budgets)} budgets, loss in nats per token")
    print("loss(N, D) = E + A / N^alpha + B / D^beta")
    names = {
        "E": "irreducible", "A": "per_parameters", "B": "per_tokens",
        "alpha": "parameters_exponent", "beta": "tokens_exponent",
    }  # fmt: skip
    for letter, name in names.items():
        low, high = law.band(lambda surface, name=name: getattr(surface, name))
        print(f"  {letter:<6} {getattr(law.surface, name):<10.4g} {low:.4g} to {high:.4g}")
    print(f"  error  {law.residual:.2%} of a loss, root mean square; bands: 95% of {len(law.draws)} draws of the runs")
    for each in study.isoflop.minima if study.isoflop else ():
        size, tokens = format_quantity(each.num_parameters), format_quantity(each.tokens)
        print(f"best at {each.flops:.3g} FLOPs: {size} parameters on {tokens} tokens, loss {each.loss:.4f}")
    for budget, reason in (study.isoflop.left_out if study.isoflop else {}).items():
        print(f"no best size at {budget} FLOPs: {reason}")
    low, high = predicted.loss_band
    size, tokens = format_quantity(predicted.num_parameters), format_quantity(predicted.tokens)
    print(f"predicted at {predicted.flops:.3g} FLOPs, {predicted.times_beyond:.3g} times the largest run's:")
    print(f"  {size} parameters on {tokens} tokens, loss {predicted.loss:.4f}, {low:.4f} to {high:.4f}")
    if predicted.isoflop_num_parameters:
        print(f"  by the minima alone {format_quantity(predicted.isoflop_num_parameters)} parameters")
    if predicted.warning:
        print(predicted.warning)
    if held_out:
        low, high = held_out.band
        where = "within" if held_out.is_within else "outside"
        print(
            f"{held_out.name}, kept out: loss {held_out.point.loss:.4f}, predicted {held_out.predicted:.4f}, "
            f"{where} {low:.4f} to {high:.4f}"
        )
    for name, reason in study.left_out.items():
        print(f"left out: {name}, {reason}")
    if study.note:
        print(study.note)
