"""From raw text to verified token shards, without torch: sources, stages, engines, and `prepare`, which joins them."""
