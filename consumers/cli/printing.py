"""Lines of styled text on standard output."""

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text


def print_lines(texts: Iterable[Text]) -> None:
    """Print line by line, as long as they are: a pipe, or the terminal itself, breaks them where it likes."""
    console = Console()
    for text in texts:
        if console.is_terminal:
            console.print(text, soft_wrap=True, highlight=False)
        else:
            sys.stdout.write(f"{text.plain.rstrip()}\n")
