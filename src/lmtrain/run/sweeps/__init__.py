"""Sweeps: `sweep` trains and scores the trials of a grid (`grid`) or of a search with Optuna (`search`).

`runners` start them in slots, each in its own process, on this machine or in SLURM's queue; `outcome` reads their
ends. sweep.json records all.
"""
