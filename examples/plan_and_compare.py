"""Plan two optimizers, train each with two seeds, and compare them with the noise of the seeds."""

import lmtrain

SMALL = ["model=llama_micro", "compile=none", "logger=none", "callbacks.text_samples=null"]

for optimizer in ("adamw", "muon"):
    planned = lmtrain.plan(*SMALL, optimizer=optimizer, budget="20K", cluster={"peak_flops": 1e12})
    memory = planned["memory"]["per_device_bytes"]["total"]
    print(f"{optimizer}: {planned['parameters']['total']:,} parameters, {memory / 1e6:,.0f} MB planned")
    for seed in (1, 2):
        run = lmtrain.train(*SMALL, optimizer=optimizer, seed=seed, budget="20K", run={"name": f"{optimizer}-{seed}"})
        print(f"  seed {seed}: loss {run.losses[-1]:.3f}, {run.metrics['validation/bits_per_byte']:.3f} bits per byte")

compared = lmtrain.compare(*lmtrain.runs())
for choice in compared.choices:
    print(f"{choice.label}: {choice.final.mean:.4f} bits per byte over {len(choice.runs)} seeds")
