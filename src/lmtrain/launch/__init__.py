"""Start the ranks of a run: here (`local`), under an outer launcher (`detect`), or on other machines.

`local` starts `agent`, which watches one `worker` per rank through `elastic`; `job` has what they share. A rank joins
the others in `process_group`. `nodes`, `sbatch` and `manifests` write the commands and files of `lmtrain launch`.
"""
