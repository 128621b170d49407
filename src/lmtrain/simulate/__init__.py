"""One rank's real step on fake tensors: a model's facts for plans, and a step in a fleet of any size."""
