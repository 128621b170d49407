"""Start the ranks of a run: here (`local`), under an outer launcher (`detect`), or on other machines.

`local` starts one `worker` per rank and watches them; `rank_ends` turns their ends into one. A rank joins the others in
`process_group`. `nodes`, `sbatch` and the templates write the commands and files of `lmtrain launch`.
"""
