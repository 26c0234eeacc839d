"""Distances between sequences of words or characters, computed on the host, many positions at a time.

The positions of a sequence are the bits of one integer: G. Myers, *A fast bit-vector algorithm for
approximate string matching based on dynamic programming* (1999), in the form of H. Hyyrö (2003), and for
common subsequences H. Hyyrö, *Bit-parallel LCS-length computation revisited* (2004).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Tokens = Sequence[Hashable]
TextInput = str | Sequence[str]


def as_list(texts: TextInput) -> Sequence[str]:
    """Return a single text as a list, and a sequence of texts unchanged."""
    return [texts] if isinstance(texts, str) else texts


def token_positions(tokens: Tokens) -> dict[Hashable, int]:
    """Return the positions of each token, as the bits of an integer."""
    masks: dict[Hashable, int] = {}
    for i, token in enumerate(tokens):
        masks[token] = masks.get(token, 0) | 1 << i
    return masks


def edit_distance(first: Tokens, second: Tokens) -> int:
    """Return how many tokens to insert, delete or substitute to turn one sequence into the other.

    >>> edit_distance("kitten", "sitting")
    3
    """
    if not first:
        return len(second)
    full, last, positions = (1 << len(first)) - 1, 1 << len(first) - 1, token_positions(first)
    up, down, distance = full, 0, len(first)
    for token in second:
        same = positions.get(token, 0)
        level = (((same & up) + up) ^ up) | same
        rising, falling = down | ~(level | up) & full, up & level
        distance += bool(rising & last) - bool(falling & last)
        rising, changed = (rising << 1 | 1) & full, same | down
        up, down = (falling << 1 | ~(changed | rising)) & full, rising & changed
    return distance


def common_subsequence_length(first: Tokens, second: Tokens) -> int:
    """Return the length of the longest common subsequence.

    >>> common_subsequence_length("abcde", "xaybcz")
    3
    """
    full, positions = (1 << len(first)) - 1, token_positions(first)
    missing = full
    for token in second:
        matches = missing & positions.get(token, 0)
        missing = (missing + matches | missing - matches) & full
    return len(first) - missing.bit_count()


def common_subsequence_positions(first: Tokens, second: Tokens) -> list[int]:
    """Return the positions in `second` of a longest common subsequence."""
    table = [[0] * (len(first) + 1) for _ in range(len(second) + 1)]
    for j, right in enumerate(second, 1):
        above, row = table[j - 1], table[j]
        for i, left in enumerate(first, 1):
            row[i] = above[i - 1] + 1 if left == right else max(above[i], row[i - 1])
    positions, i, j = [], len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            i, j = i - 1, j - 1
            positions.append(j)
        elif table[j][i - 1] > table[j - 1][i]:
            i -= 1
        else:
            j -= 1
    return positions[::-1]
