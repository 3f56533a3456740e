"""The conversation of a REPL: session, commands, rendering."""
