"""Search a learning rate with Optuna from Python: each trial is a run like any other."""

import optuna

import lmtrain

SMALL = ["model=llama_micro", "compile=none", "logger=none", "callbacks.text_samples=null"]


def bits_per_byte(trial: optuna.Trial) -> float:
    """Train one trial and return its score; lower is better."""
    lr = trial.suggest_float("lr", 2e-3, 2e-1, log=True)
    run = lmtrain.train(*SMALL, optimizer={"lr": lr}, budget="20K", run={"name": f"sweep/trial-{trial.number}"})
    return run.metrics["validation/bits_per_byte"]


study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
study.optimize(bits_per_byte, n_trials=3)
print(f"best: {study.best_value:.3f} bits per byte with lr={study.best_params['lr']:.3g}")
