"""The command `rolloutlog`. One module a command, loaded when it is called."""

from rolloutlog.consumers.cli.main import main

__all__ = ["main"]
