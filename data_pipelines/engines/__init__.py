"""Where the stages run: on this machine, on SLURM, or on a Ray cluster."""
