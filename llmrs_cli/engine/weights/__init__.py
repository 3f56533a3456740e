"""Checkpoints on disk to weights in a backend."""
