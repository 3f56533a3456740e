"""One command a file; the only room that reads arguments and sets exit codes."""
