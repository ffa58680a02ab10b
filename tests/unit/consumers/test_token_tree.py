"""A tree of token runs: ends stay the same places, whatever is put in later."""

import pytest
from support.building import ids

from rolloutlog.consumers.token_tree import TokenTree, packed_path


def test_added_tokens_come_back_as_the_path_to_their_end():
    tree = TokenTree()
    end = tree.add(tree.root, ids(1, 2, 3))
    assert (packed_path(end, tree.root), end.depth) == (ids(1, 2, 3), 3)


def test_no_tokens_lead_to_where_they_start():
    tree = TokenTree()
    end = tree.add(tree.root, ids(1, 2))
    assert tree.add(end, b"") is end
    assert packed_path(end, end) == b""


def test_same_tokens_lead_to_the_same_place_in_one_piece_or_in_two():
    tree = TokenTree()
    whole = tree.add(tree.root, ids(1, 2, 3, 4))
    half = tree.add(tree.root, ids(1, 2))
    assert tree.add(half, ids(3, 4)) is whole
    assert tree.add(tree.root, ids(1, 2)) is half


@pytest.mark.parametrize("other", [(1, 2, 9), (1, 2), (1, 2, 3, 4, 5)], ids=["parts", "shorter", "longer"])
def test_end_stays_the_same_place_when_another_run_shares_its_beginning(other):
    tree = TokenTree()
    end = tree.add(tree.root, ids(1, 2, 3, 4))
    below = tree.add(end, ids(5, 6))
    far = tree.add(tree.root, ids(*other))
    assert packed_path(far, tree.root) == ids(*other)
    assert packed_path(end, tree.root) == ids(1, 2, 3, 4)
    assert packed_path(below, tree.root) == ids(1, 2, 3, 4, 5, 6)
    assert packed_path(below, end) == ids(5, 6)


@pytest.mark.parametrize("depth", range(7))
def test_place_above_is_so_many_tokens_from_the_root(depth: int):
    tree = TokenTree()
    middle = tree.add(tree.root, ids(1, 2, 3))
    end = tree.add(middle, ids(4, 5, 6))
    above = tree.above(end, depth)
    assert (above.depth, packed_path(above, tree.root)) == (depth, ids(*range(1, depth + 1)))
    assert packed_path(end, above) == ids(*range(depth + 1, 7))
