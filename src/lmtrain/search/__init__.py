"""Hyperparameter search, independent of runs: its settings and space, Optuna's study, halving, and importance."""
