#!/bin/bash
$directives
# --requeue: after a node has failed SLURM starts the job again, all nodes together, and the run continues.
# Without --cpus-per-task a rank has the queue's default of cores, often one. NCCL finds InfiniBand cards by itself; where
# it takes wrong ones, set cluster.environment.NCCL_IB_HCA and cluster.environment.NCCL_SOCKET_IFNAME.
# At SIGUSR1 the ranks save and end with 85; the job is queued again, and its run continues.
# A failing rank cancels the step after 5 s, in which the others report their own ends: SLURM would let them wait for
# it. bash ignores the signals, which SLURM sends to the rank as well.
rank='trap : USR1 TERM; "$$@"; code=$$?; case $$code in 0|85|130|143) ;; *) sleep 5; scancel --signal=KILL "$$SLURM_JOB_ID.$$SLURM_STEP_ID";; esac; exit $$code'
srun$step_options bash -c "$$rank" rank $command
code=$$?
[ $$code = 85 ] && scontrol requeue "$$SLURM_JOB_ID"
exit $$code
