"""llmrs: a local LLM engine for the shell. Importing the package imports nothing else."""

__version__ = "0.1.0.dev0"
