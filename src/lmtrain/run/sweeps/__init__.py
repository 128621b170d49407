"""Sweeps: `sweep` trains and scores the trials of a grid (`grid`) or of a search with Optuna (`search`).

A `pool` of slots has them started by `runners`, on this machine or in SLURM's queue, each in a `trial_process`;
`outcome` reads their ends, `limits` counts their hours and dollars. sweep.json records all.
"""
