"""Hardware and number formats."""
