"""Tests of the CPU loops and of how they are kept."""
