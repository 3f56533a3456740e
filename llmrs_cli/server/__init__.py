"""The OpenAI-compatible server: HTTP, tokenising and streaming here, the engine in a child process."""
