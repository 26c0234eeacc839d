"""Distances between sequences of words or characters, computed on the host, many places at a time.

The places of a sequence are the bits of one integer: G. Myers, *A fast bit-vector algorithm for approximate
string matching based on dynamic programming* (1999), as H. Hyyrö (2003) has it, and for common subsequences
H. Hyyrö, *Bit-parallel LCS-length computation revisited* (2004).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Tokens = Sequence[Hashable]
Texts = str | Sequence[str]


def as_list(texts: Texts) -> Sequence[str]:
    """One text as a list of one."""
    return [texts] if isinstance(texts, str) else texts


def places(tokens: Tokens) -> dict[Hashable, int]:
    """Where each token stands: the bits of an integer."""
    found: dict[Hashable, int] = {}
    for i, token in enumerate(tokens):
        found[token] = found.get(token, 0) | 1 << i
    return found


def edit_distance(one: Tokens, other: Tokens) -> int:
    """How many tokens must be put in, left out or changed to make one sequence the other.

    >>> edit_distance("kitten", "sitting")
    3
    """
    if not one:
        return len(other)
    full, last, at = (1 << len(one)) - 1, 1 << len(one) - 1, places(one)
    up, down, distance = full, 0, len(one)
    for token in other:
        same = at.get(token, 0)
        level = (((same & up) + up) ^ up) | same
        rising, falling = down | ~(level | up) & full, up & level
        distance += bool(rising & last) - bool(falling & last)
        rising, changed = (rising << 1 | 1) & full, same | down
        up, down = (falling << 1 | ~(changed | rising)) & full, rising & changed
    return distance


def common_length(one: Tokens, other: Tokens) -> int:
    """How many tokens the longest common subsequence has.

    >>> common_length("abcde", "xaybcz")
    3
    """
    full, at = (1 << len(one)) - 1, places(one)
    missing = full
    for token in other:
        there = missing & at.get(token, 0)
        missing = (missing + there | missing - there) & full
    return len(one) - missing.bit_count()


def common_places(one: Tokens, other: Tokens) -> list[int]:
    """Where the tokens of one longest common subsequence stand in `other`."""
    table = [[0] * (len(one) + 1) for _ in range(len(other) + 1)]
    for j, right in enumerate(other, 1):
        above, row = table[j - 1], table[j]
        for i, left in enumerate(one, 1):
            row[i] = above[i - 1] + 1 if left == right else max(above[i], row[i - 1])
    found, i, j = [], len(one), len(other)
    while i and j:
        if one[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            found.append(j)
        elif table[j][i - 1] > table[j - 1][i]:
            i -= 1
        else:
            j -= 1
    return found[::-1]
