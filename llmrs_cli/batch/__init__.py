"""Batch jobs: records in and out, and the run between them."""
