"""Compute-optimal sizes, muP across widths, and the depth dial of nano."""
