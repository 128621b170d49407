"""Hyperparameter search, independent of runs: its settings and space, and Optuna's study."""
