"""Where the command `llmrs` starts; also `python -m llmrs_cli`."""

import signal


def start() -> None:
    """Run the command. Ctrl-C during the imports ends the process, without Python's traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from llmrs_cli.cli.root import main

    signal.signal(signal.SIGINT, handler)
    main()


if __name__ == "__main__":
    start()
