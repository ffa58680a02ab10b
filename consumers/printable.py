"""Text for a terminal: ids, names and errors come from anyone, and may hold what moves its cursor or sets colours."""

import logging


def printable(text: str, *, keep: str = "") -> str:
    """The text with a replacement character for each that is not printable, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else "\ufffd" for each in text)


class PrintableFormatter(logging.Formatter):
    """Log lines of any number, such as tracebacks, with nothing in them but text."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")
