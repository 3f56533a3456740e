"""Kernel variants side by side: checked against each other and timed, one table. See `__main__`."""
