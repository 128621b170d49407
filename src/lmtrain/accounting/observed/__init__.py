"""Measured values: machines, steps by part, the accounts of a run's time, and plan versus actual."""
