"""Pages of plans, fleets, calculations and simulated steps."""
