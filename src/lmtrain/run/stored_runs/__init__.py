"""Runs on disk: which one a path means, where it continues, and its models.

`job` is the saved config of a run, `find_run` the run or checkpoint of a path, `resume` where a run continues and
`identity` what may not change then. `initial_weights` belongs to init_from, `skipped_batches` to
spikes; `loaded_models`, `exported_models` and `trained_step` give a run's models and past batches to other commands.
"""
