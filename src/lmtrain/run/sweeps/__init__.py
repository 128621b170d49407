"""Sweeps: `sweep` trains and scores the trials of a grid (`grid`) or of a search with Optuna (`search`).

`runners` start them in slots, on this machine or in SLURM's queue, each in a `trial_process`;
`outcome` reads their ends. sweep.json records all.
"""
