"""Sweeps: grids of all combinations (`grid`) and searches with Optuna (`prepare`, `search`, `book`, `limits`).

`runners` starts trials on this machine or in SLURM's queue, each in a `trial_process`; `outcome` reads their ends.
Both kinds write sweep.json.
"""
