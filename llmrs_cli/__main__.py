"""`python -m llmrs_cli` is the command `llmrs`."""

from llmrs_cli.cli.root import main

if __name__ == "__main__":
    main()
