"""A model in numbers: its shape, FLOPs, optimizer state and memory."""
