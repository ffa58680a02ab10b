"""A tree of token runs: what begins alike is held once, so that long conversations cost what is new in each call.

Every run of tokens is a path from the root. A node is a place at which a run ended or two runs part; it stays the same
object when others are put in above it.
"""

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

NO_TOKENS: Tokens = np.empty(0, np.int32)


class Node:
    """A place in the tree. `depth`: tokens from the root to here; `tokens`: the last of them, after `parent`."""

    __slots__ = ("children", "depth", "parent", "tokens")

    def __init__(self, parent: "Node | None", tokens: Tokens, depth: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.depth = depth
        self.children: dict[int, Node] = {}  # by their first token


class TokenTree:
    """Runs of tokens, by their common beginnings."""

    def __init__(self) -> None:
        self.root = Node(None, NO_TOKENS, 0)

    def add(self, start: Node, packed: bytes) -> Node:
        """Where these tokens lead from `start`. Reads only them, and of the tree what they have in common with it."""
        node, tokens = start, np.frombuffer(packed, "<i4")
        while len(tokens):
            child = node.children.get(int(tokens[0]))
            if child is None:
                child = Node(node, tokens, node.depth + len(tokens))
                node.children[int(tokens[0])] = child
                return child
            common = _common(child.tokens, tokens)
            node = child if common == len(child.tokens) else _part(child, common)
            tokens = tokens[common:]
        return node

    def above(self, node: Node, depth: int) -> Node:
        """The place `depth` tokens from the root on the way to `node`, which is at least as far."""
        while node.parent is not None and node.parent.depth >= depth:
            node = node.parent
        return node if node.depth == depth else _part(node, depth - (node.depth - len(node.tokens)))


def packed_path(node: Node, start: Node | None) -> bytes:
    """The tokens from `start` (None: the root), which is on the way, to `node`, packed."""
    parts = []
    at: Node | None = node
    while at is not None and at is not start:
        parts.append(at.tokens)
        at = at.parent
    return b"".join(part.tobytes() for part in reversed(parts))


def _part(node: Node, count: int) -> Node:
    """Put a place in after the first `count` tokens of `node`, which is then below it. Copies no tokens."""
    assert node.parent is not None
    assert 0 < count < len(node.tokens)
    first, rest = node.tokens[:count], node.tokens[count:]
    upper = Node(node.parent, first, node.depth - len(rest))
    upper.children[int(rest[0])] = node
    node.parent.children[int(first[0])] = upper
    node.parent, node.tokens = upper, rest
    return upper


def _common(left: Tokens, right: Tokens) -> int:
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    at = int(different.argmax())
    return at if different[at] else length
