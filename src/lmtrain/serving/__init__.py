"""A server: OpenAI's API and a chat page over a model of this machine."""
