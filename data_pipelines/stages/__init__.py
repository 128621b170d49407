"""The steps between a source and its shards: cleaning, deduplication, splitting, tokenizers, encoding."""
