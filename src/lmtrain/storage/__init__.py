"""Files that survive power cuts, and readers for files that nobody vouches for."""
