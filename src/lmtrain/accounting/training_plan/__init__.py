"""The plan of a run: what fits, step time, communication, cost, and the stages of a pipeline."""
