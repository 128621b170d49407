"""Arithmetic without torch: hardware, batches, budgets, memory, FLOPs, step time, fleets and scaling laws."""
