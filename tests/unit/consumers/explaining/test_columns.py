"""Tables as lines of text."""

from rolloutlog.consumers.explaining.columns import columns


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_stand_to_the_right():
    rows = [("a", "1,000", "12.5 %", "20 moved"), ("longer", "7", "none", "")]
    assert [line.plain for line in columns(("name", "count", "share", "how"), rows)] == [
        "name    count   share  how",
        "a       1,000  12.5 %  20 moved",
        "longer      7    none",
    ]


def test_columns_without_rows_are_the_header():
    assert [line.plain for line in columns(("a", "b"), [])] == ["a  b"]
