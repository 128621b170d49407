"""Tokenizers that give every text back, and conversations as ids with a loss mask."""
