"""Text that terminals show as it is."""

import logging
import sys

from rolloutlog.consumers.printable import PrintableFormatter, printable


def test_printable_text_stays_as_it_is():
    assert printable("rollout ä-日本 [red]: 1 → 2") == "rollout ä-日本 [red]: 1 → 2"


def test_characters_that_move_a_cursor_or_set_colours_are_replaced():
    assert printable("a\x1b[31mb\r\n\x07\x9b\u202e") == "a\ufffd[31mb" + "\ufffd" * 5


def test_lines_are_kept_where_they_are_wanted():
    assert printable("a\nb\x1bc\td", keep="\n") == "a\nb\ufffdc\ufffdd"


def test_log_line_with_a_traceback_keeps_its_lines_and_nothing_else_that_is_not_printable():
    try:
        raise ValueError("\x1b]0;title\x07")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "rollout %s", ("\x1b[2J",), sys.exc_info())
    text = PrintableFormatter("%(message)s").format(record)
    assert text.startswith("rollout \ufffd[2J\nTraceback")
    assert text.endswith("ValueError: \ufffd]0;title\ufffd")
