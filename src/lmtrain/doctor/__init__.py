"""Is this machine ready for a long run? `checks` looks at devices, limits, disk and store; `measure` at their speed."""
