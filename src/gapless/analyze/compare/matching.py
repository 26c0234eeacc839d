"""Match kernels, lines and findings of two runs between which the code was edited."""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gapless.model import SourceLine

MAX_LINE_DRIFT = 10
"""Lines by which edits elsewhere in a file may move a place of unknown text; more would pair strangers."""

PositionGroups = list[tuple[list[int], list[int]]]
"""Positions before and after that belong together; one side may be empty."""

PositionPairs = list[tuple["int | None", "int | None"]]


class ComparedPlace(NamedTuple):
    """A place in the code; places of different `kind` never match."""

    kind: str
    line: SourceLine | None
    text: str = ""
    """Stands for the line where there is none: ``aten::index in forward``."""
    traits: tuple[Hashable, ...] = ()
    """Breaks ties between places that are otherwise alike; a match may differ in them."""


def match_names(before: Sequence[str], after: Sequence[str]) -> PositionGroups:
    """Match kernels by name: equal names first, then names that differ only by compiler or release.

    Positions refer to `before` and `after`, which hold no name twice. Kernels without a counterpart come
    as groups with an empty side.
    """
    groups: PositionGroups = []
    left, right = list(range(len(before))), list(range(len(after)))
    for key in (str, normalize_kernel_name, _strip_sizes):
        old, new = _by_key(left, before, key), _by_key(right, after, key)
        common = [name for name in old if name in new]
        groups += [(old[name], new[name]) for name in common]
        done = {position for name in common for position in old[name]}
        left = [position for position in left if position not in done]
        done = {position for name in common for position in new[name]}
        right = [position for position in right if position not in done]
    return groups + [([position], []) for position in left] + [([], [position]) for position in right]


def _by_key(
    positions: Sequence[int], names: Sequence[str], key: Callable[[str], str]
) -> dict[str, list[int]]:
    by_key: dict[str, list[int]] = defaultdict(list)
    for position in positions:
        by_key[key(names[position])].append(position)
    return by_key


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
"""(pattern, replacement) for spellings of one kernel that differ between releases of torch and CUDA."""

_TRITON = re.compile(r"^(triton_[a-z]+_.*?)(?:_\d+)?(?:_[0-9de]+de[0-9de]*)?$")


def normalize_kernel_name(name: str) -> str:
    """Remove from a kernel's name what depends on the compiling release: parameters, casts, counters."""
    if name.startswith("triton_"):
        match = _TRITON.match(name)
        return match.group(1) if match else name
    text = _strip_parameters(name.removeprefix("void "))
    for pattern, instead in _NOISE:
        text = re.sub(pattern, instead, text)
    return text


def _strip_parameters(name: str) -> str:
    """Remove the parameter list at the end of `name`, if there is one."""
    if not name.endswith(")"):
        return name
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if depth == 0:
            head = name[:position].rstrip()
            return head if head and not head.endswith(("::", "<", ",")) else name
    return name


def _strip_sizes(name: str) -> str:
    """Normalize a kernel's name and drop integer template arguments, which depend on sizes."""
    return re.sub(r"(?<=[<,])-?\d+(?=[,>])", "", normalize_kernel_name(name))


def match_places(
    before: Sequence[ComparedPlace], after: Sequence[ComparedPlace], edited: bool = True
) -> PositionPairs:
    """Match places one to one, surest matches first; a place without a counterpart is paired with None.

    Lines match if kind, file, function and text are equal; a text without a counterpart in its file is
    looked for in functions of the same name in other files. Where the text is unknown, a line may have moved
    with its function and, within it, by :data:`MAX_LINE_DRIFT`.

    With `edited`, a line may match one of another text, and the places left over in a function are paired in
    order if it has as many as before. Without, a different text is a different place.
    """
    candidates = []
    old, new = _by_file(before), _by_file(after)
    shifts = _shifts(before, after)
    for key in old.keys() & new.keys():
        for i in old[key]:
            for j in new[key]:
                grade = _grade_match(before[i], after[j], shifts, edited)
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
    for i, j in _match_renamed_files(before, after, set(taken_before), taken_after):
        take(i, j)
    for i, j in _match_leftovers(before, after, set(taken_before), taken_after) if edited else ():
        take(i, j)
    pairs: PositionPairs = [(i, taken_before.get(i)) for i in range(len(before))]
    return pairs + [(None, j) for j in range(len(after)) if j not in taken_after]


def _by_file(places: Sequence[ComparedPlace]) -> dict[Hashable, list[int]]:
    by_file: dict[Hashable, list[int]] = defaultdict(list)
    for position, place in enumerate(places):
        where = _parts(place.line.file)[-1] if place.line else place.text.split(" in ", 1)[0]
        by_file[place.kind, place.line is None, where].append(position)
    return by_file


_Function = tuple[str, str]
"""A file's name and a function in it."""


def _function(place: ComparedPlace) -> _Function:
    return (_parts(place.line.file)[-1], place.line.function) if place.line else ("", "")


def _shifts(before: Sequence[ComparedPlace], after: Sequence[ComparedPlace]) -> dict[_Function, int]:
    """Return by how many lines most places of each function moved; on a tie the smallest shift."""
    votes: dict[_Function, Counter[int]] = defaultdict(Counter)
    new: dict[Hashable, list[int]] = defaultdict(list)
    for place in after:
        new[place.kind, _function(place)].append(_line_number(place))
    for place in before:
        if place.line and place.line.function:
            own = _function(place)
            votes[own].update(number - place.line.line for number in new[place.kind, own])
    return {
        name: min(counts, key=lambda shift: (-counts[shift], abs(shift), shift))
        for name, counts in votes.items()
        if counts
    }


def _grade_match(
    before: ComparedPlace, after: ComparedPlace, shifts: Mapping[_Function, int], edited: bool
) -> tuple[int, ...] | None:
    """Grade a match, lower is surer; None where the places differ."""
    a, b = before.line, after.line
    apart = sum(x != y for x, y in zip(before.traits, after.traits, strict=False))
    if a is None or b is None:
        return (0, 0 if before.text == after.text else 1, apart, 0)
    files = _file_distance(a.file, b.file)
    has_functions = bool(a.function and b.function)
    if a.code and b.code and (a.code == b.code or normalize_code(a.code) == normalize_code(b.code)):
        return (files, 0 if a.function == b.function else 3, apart, abs(a.line - b.line))
    both_told = bool(a.code and b.code)
    shift = 0 if both_told or a.function != b.function else shifts.get(_function(before), 0)
    drift = abs(a.line + shift - b.line)
    if drift > MAX_LINE_DRIFT or (has_functions and a.function != b.function) or (both_told and not edited):
        return None
    return (files, 1 if has_functions and not both_told else 2 if has_functions else 4, apart, drift)


@lru_cache(maxsize=4096)
def normalize_code(code: str) -> str:
    """Return the tokens of a line of Python, without comment and spacing."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):  # the statement continues on the next line
        return " ".join(code.split())
    return " ".join(token.string for token in tokens if token.type not in _NO_WORDS and token.string)


_NO_WORDS = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def _match_renamed_files(
    before: Sequence[ComparedPlace], after: Sequence[ComparedPlace], done: set[int], done_after: set[int]
) -> list[tuple[int, int]]:
    """Pair places with equal text in functions of equal name whose files have other names (renamed files)."""
    unmatched: dict[Hashable, list[int]] = defaultdict(list)
    for j, place in enumerate(after):
        if j not in done_after and _code_of(place):
            unmatched[_identity(place)].append(j)
    pairs = []
    for i, place in enumerate(before):
        same = unmatched.get(_identity(place)) if i not in done and _code_of(place) else None
        if same:
            pairs.append((i, same.pop(0)))
    return pairs


def _identity(place: ComparedPlace) -> Hashable:
    return place.kind, place.line.function if place.line else "", normalize_code(_code_of(place))


def _match_leftovers(
    before: Sequence[ComparedPlace], after: Sequence[ComparedPlace], done: set[int], done_after: set[int]
) -> list[tuple[int, int]]:
    """Pair, by line number, what is left in functions with as many unmatched places before as after."""

    def by_function(places: Sequence[ComparedPlace], done: set[int]) -> dict[Hashable, list[int]]:
        by_name: dict[Hashable, list[int]] = defaultdict(list)
        for position, place in enumerate(places):
            line = place.line
            if line and line.function and position not in done:
                by_name[place.kind, _parts(line.file)[-1], line.function].append(position)
        return {
            key: sorted(positions, key=lambda p: _line_number(places[p]))
            for key, positions in by_name.items()
        }

    old, new = by_function(before, done), by_function(after, done_after)
    return [
        (i, j)
        for key, old_places in old.items()
        if len(old_places) == len(new.get(key, ()))
        for i, j in zip(old_places, new[key], strict=True)
        if not (_code_of(before[i]) and _code_of(after[j]))  # different texts are different lines
    ]


def _line_number(place: ComparedPlace) -> int:
    return place.line.line if place.line else 0


def _code_of(place: ComparedPlace) -> str:
    return place.line.code if place.line else ""


def _parts(file: str) -> list[str]:
    return file.replace("\\", "/").split("/")


def _file_distance(a: str, b: str) -> int:
    """0 for the same file, 1 if only higher folders differ, 2 if only the file name is equal."""
    old, new = _parts(a), _parts(b)
    shorter = min(len(old), len(new))
    if old[-shorter:] == new[-shorter:]:
        return 0
    return 1 if old[-2:] == new[-2:] else 2
