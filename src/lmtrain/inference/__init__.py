"""Writing texts with a model: the engine and its cache, sampling, chat formats and sessions, tools."""
