"""Where text comes from: files, Hugging Face datasets, preference pairs, made conversations, the standard library."""
