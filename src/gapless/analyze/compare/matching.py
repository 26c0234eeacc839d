"""Which kernel, line or finding of one run is which of another, after the code has been edited."""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gapless.model import SourceLine

DRIFT = 10
"""Lines that an edit elsewhere in the file may have moved a place whose text is not known."""

Groups = list[tuple[list[int], list[int]]]
"""Positions before and after that belong together; one side may be empty."""

Pairs = list[tuple["int | None", "int | None"]]


class Place(NamedTuple):
    """Where something is, and what: places of different `kind` are never the same."""

    kind: str
    line: SourceLine | None
    text: str = ""
    """Stands for the line where there is none: ``aten::index in forward``."""
    traits: tuple[Hashable, ...] = ()
    """What tells places apart that are alike in all else; it may change, and the place is still the same."""


def match_names(before: Sequence[str], after: Sequence[str]) -> Groups:
    """Kernels by name: the same name first, then names that differ in what compilers and releases change.

    Positions refer to `before` and `after`, which hold no name twice. Kernels without a counterpart come
    as groups with an empty side.
    """
    groups: Groups = []
    left, right = list(range(len(before))), list(range(len(after)))
    for key in (str, spelling, _shapeless):
        old, new = _by_key(left, before, key), _by_key(right, after, key)
        common = [one for one in old if one in new]
        groups += [(old[one], new[one]) for one in common]
        done = {position for one in common for position in old[one]}
        left = [position for position in left if position not in done]
        done = {position for one in common for position in new[one]}
        right = [position for position in right if position not in done]
    return groups + [([position], []) for position in left] + [([], [position]) for position in right]


def _by_key(
    positions: Sequence[int], names: Sequence[str], key: Callable[[str], str]
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for position in positions:
        found[key(names[position])].append(position)
    return found


_NOISE: tuple[tuple[str, str], ...] = (
    (r"\[clone [^\]]*\]", ""),
    (r"\(anonymous namespace\)::|<unnamed>::|_GLOBAL__N_\w*::|\(unnamed\)::", ""),
    (r"\{?'?lambda'?\s*(?:\(([^()]*)\))?\s*#?\d*\}?", r"lambda(\1)"),
    (r"\bat::detail::Array\b|\bstd::__?\d*:*array\b", "std::array"),
    (r"\bc10::complex\b", "complex"),
    (r"\b__nv_bfloat16\b|\bc10::BFloat16\b", "bfloat16"),
    (r"\b__half\b|\bc10::Half\b", "half"),
    (r"\b(\d+)(?:u?l{0,2}|ul{0,2})\b", r"\1"),
    (r"\((?:unsigned )?(?:int|long|bool)\)(?=-?\w)", ""),
    (r"\btrue\b", "1"),
    (r"\bfalse\b", "0"),
    (r"\s+", ""),
)
"""What releases of torch, CUDA and compilers write differently of one and the same kernel."""

_TRITON = re.compile(r"^(triton_[a-z]+_.*?)(?:_\d+)?(?:_[0-9de]+de[0-9de]*)?$")


def spelling(name: str) -> str:
    """A kernel's name without what depends on the release that compiled it: parameters, casts, counters."""
    if name.startswith("triton_"):
        found = _TRITON.match(name)
        return found.group(1) if found else name
    text = _without_parameters(name.removeprefix("void "))
    for pattern, instead in _NOISE:
        text = re.sub(pattern, instead, text)
    return text


def _without_parameters(name: str) -> str:
    """`name` without the list of parameters at its end, if the name ends with one."""
    if not name.endswith(")"):
        return name
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if depth == 0:
            head = name[:position].rstrip()
            return head if head and not head.endswith(("::", "<", ",")) else name
    return name


def _shapeless(name: str) -> str:
    """`spelling` without the integers among the template arguments: widths and tiles chosen by size."""
    return re.sub(r"(?<=[<,])-?\d+(?=[,>])", "", spelling(name))


def match_places(before: Sequence[Place], after: Sequence[Place], edited: bool = True) -> Pairs:
    """Places one to one, those that are surely the same first; a place without a counterpart has None.

    Lines are the same where kind and file are, and the function and the text of the line; a text without
    a counterpart in its file is looked for in functions of that name in others. Where the text is not known,
    a line may have moved with its function and, in it, by :data:`DRIFT`.

    With `edited`, a line of another text may be the same one edited, and what is left in a function
    that has as many such places as before is paired in order. Without, another text is another place.
    """
    candidates = []
    old, new = _by_file(before), _by_file(after)
    shifts = _shifts(before, after)
    for key in old.keys() & new.keys():
        for i in old[key]:
            for j in new[key]:
                grade = _grade(before[i], after[j], shifts, edited)
                if grade is not None:
                    candidates.append((grade, i, j))
    taken_before: dict[int, int] = {}
    taken_after: set[int] = set()

    def take(i: int, j: int) -> None:
        if i not in taken_before and j not in taken_after:
            taken_before[i] = j
            taken_after.add(j)

    for _, i, j in sorted(candidates):
        take(i, j)
    for i, j in _elsewhere(before, after, set(taken_before), taken_after):
        take(i, j)
    for i, j in _in_order(before, after, set(taken_before), taken_after) if edited else ():
        take(i, j)
    pairs: Pairs = [(i, taken_before.get(i)) for i in range(len(before))]
    return pairs + [(None, j) for j in range(len(after)) if j not in taken_after]


def _by_file(places: Sequence[Place]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for position, place in enumerate(places):
        where = _parts(place.line.file)[-1] if place.line else place.text.split(" in ", 1)[0]
        found[place.kind, place.line is None, where].append(position)
    return found


_Function = tuple[str, str]
"""A file's name and a function in it."""


def _function(place: Place) -> _Function:
    return (_parts(place.line.file)[-1], place.line.function) if place.line else ("", "")


def _shifts(before: Sequence[Place], after: Sequence[Place]) -> dict[_Function, int]:
    """By how many lines most places of each function have moved; of several answers the smallest."""
    votes: dict[_Function, Counter[int]] = defaultdict(Counter)
    new: dict[Hashable, list[int]] = defaultdict(list)
    for place in after:
        new[place.kind, _function(place)].append(_number(place))
    for place in before:
        if place.line and place.line.function:
            own = _function(place)
            votes[own].update(number - place.line.line for number in new[place.kind, own])
    return {
        name: min(counts, key=lambda shift: (-counts[shift], abs(shift), shift))
        for name, counts in votes.items()
        if counts
    }


def _grade(
    before: Place, after: Place, shifts: Mapping[_Function, int], edited: bool
) -> tuple[int, ...] | None:
    """How sure it is that both are one place, the surest first; None where they are not."""
    a, b = before.line, after.line
    apart = sum(x != y for x, y in zip(before.traits, after.traits, strict=False))
    if a is None or b is None:
        return (0, 0 if before.text == after.text else 1, apart, 0)
    files = _files_apart(a.file, b.file)
    known = bool(a.function and b.function)
    if a.code and b.code and (a.code == b.code or wording(a.code) == wording(b.code)):
        return (files, 0 if a.function == b.function else 3, apart, abs(a.line - b.line))
    both_told = bool(a.code and b.code)
    shift = 0 if both_told or a.function != b.function else shifts.get(_function(before), 0)
    drift = abs(a.line + shift - b.line)
    if drift > DRIFT or (known and a.function != b.function) or (both_told and not edited):
        return None
    return (files, 1 if known and not both_told else 2 if known else 4, apart, drift)


@lru_cache(maxsize=4096)
def wording(code: str) -> str:
    """The words of a line of Python, whatever its spaces and its comment."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):  # a statement that goes on in the next line
        return " ".join(code.split())
    return " ".join(one.string for one in tokens if one.type not in _NO_WORDS and one.string)


_NO_WORDS = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def _elsewhere(
    before: Sequence[Place], after: Sequence[Place], done: set[int], done_after: set[int]
) -> list[tuple[int, int]]:
    """The same text in a function of the same name, in a file of another name: the file was renamed."""
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    for j, place in enumerate(after):
        if j not in done_after and _code(place):
            waiting[_identity(place)].append(j)
    found = []
    for i, place in enumerate(before):
        same = waiting.get(_identity(place)) if i not in done and _code(place) else None
        if same:
            found.append((i, same.pop(0)))
    return found


def _identity(place: Place) -> Hashable:
    return place.kind, place.line.function if place.line else "", wording(_code(place))


def _in_order(
    before: Sequence[Place], after: Sequence[Place], done: set[int], done_after: set[int]
) -> list[tuple[int, int]]:
    """What is left of functions that have as many places left before as after, in order of lines."""

    def by_function(places: Sequence[Place], done: set[int]) -> dict[Hashable, list[int]]:
        found: dict[Hashable, list[int]] = defaultdict(list)
        for position, place in enumerate(places):
            line = place.line
            if line and line.function and position not in done:
                found[place.kind, _parts(line.file)[-1], line.function].append(position)
        return {key: sorted(some, key=lambda p: _number(places[p])) for key, some in found.items()}

    old, new = by_function(before, done), by_function(after, done_after)
    return [
        (i, j)
        for key, some in old.items()
        if len(some) == len(new.get(key, ()))
        for i, j in zip(some, new[key], strict=True)
        if not (_code(before[i]) and _code(after[j]))  # two texts that differ are two lines
    ]


def _number(place: Place) -> int:
    return place.line.line if place.line else 0


def _code(place: Place) -> str:
    return place.line.code if place.line else ""


def _parts(file: str) -> list[str]:
    return file.replace("\\", "/").split("/")


def _files_apart(a: str, b: str) -> int:
    """0 for one file, 1 for one below folders of different names, 2 where only the name is the same."""
    old, new = _parts(a), _parts(b)
    shorter = min(len(old), len(new))
    if old[-shorter:] == new[-shorter:]:
        return 0
    return 1 if old[-2:] == new[-2:] else 2
