"""TTIR as text (``str(module)``) to nouns.

Triton prints each operation on a line of its own, with regions between braces on lines of theirs. Names,
attributes and types are told apart by brackets, and not by a grammar for each operation, so that words which
come and go between Triton's versions do no harm.
"""

from __future__ import annotations

import re

from gapless.kernels.nodes import Block, Function, Module, Op, Type, type_of

NAME = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RESULTS = re.compile(r"((?:%[\w$.\-]+(?::\d+)?(?:, )?)+) = ")
_OPERATION = re.compile(r'"?([\w.]+)"?')
_BOUND = re.compile(r"(%[\w$.\-]+) = (%[\w$.\-]+(?:#\d+)?)")
_FUNCTION = re.compile(r"tt\.func (public |private )?@(\"[^\"]*\"|[\w$.\-]+)\(")
_OPEN, _CLOSE = "<({[", ">)}]"


class TtirError(ValueError):
    """A line of TTIR that is not understood."""


def parse(text: str) -> Module:
    """The functions in `text`.

    Raises:
        TtirError: there is no kernel in it, or a line that is not understood.
    """
    lines = [line for line in map(_clean, text.splitlines()) if line and not line.startswith("#")]
    reader = _Reader(lines)
    functions: dict[str, Function] = {}
    while (line := reader.next()) is not None:
        found = _FUNCTION.match(line)
        if found is None:
            continue
        if not line.endswith("{"):  # declared elsewhere
            continue
        blocks, _ = _region(reader)
        end = closing(line, found.end() - 1)
        names, types = _arguments(line[found.end() : end])
        blocks[0].names = blocks[0].names or names
        name = found[2].strip('"')
        functions[name] = Function(name, names, types, blocks, (found[1] or "").strip() != "private")
    if not any(one.public for one in functions.values()):
        raise TtirError("no kernel in it")
    return Module(functions)


def _clean(line: str) -> str:
    """A line without locations, and without what stands around it."""
    line = line.strip()
    while " loc(" in line:
        start = line.index(" loc(")
        line = line[:start] + line[closing(_masked(line), start + 4) + 1 :]
    if line.startswith("^"):
        line = line.split(" //")[0].rstrip()
    return line


def _masked(text: str) -> str:
    """`text` with what is quoted made harmless, letter for letter."""
    return _STRING.sub(lambda found: '"' + "_" * (len(found[0]) - 2) + '"', text) if '"' in text else text


def closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` is closed."""
    depth = 0
    for position in range(start, len(text)):
        letter = text[position]
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE and text[position - 1] != "-":  # no arrow
            depth -= 1
            if depth == 0:
                return position
    raise TtirError(f"a bracket stays open: {text}")


def split(text: str, mark: str = ",") -> list[str]:
    """`text` between marks outside of brackets, stripped, without empty parts."""
    parts, depth, begin = [], 0, 0
    for position, letter in enumerate(text):
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE and text[position - 1 : position] != "-":
            depth -= 1
        elif letter == mark and depth == 0:
            parts.append(text[begin:position].strip())
            begin = position + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


class _Reader:
    """Lines, one after the other."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = iter(lines)

    def next(self) -> str | None:
        return next(self._lines, None)


def _arguments(text: str) -> tuple[tuple[str, ...], tuple[Type, ...]]:
    """Names and types of ``%a: i32, %b: tensor<4xf32> {…}``."""
    names, types = [], []
    for part in split(text):
        name, _, rest = part.partition(":")
        names.append(name.strip())
        types.append(type_of(rest.split(" {")[0]))
    return tuple(names), tuple(types)


def _region(reader: _Reader) -> tuple[list[Block], str]:
    """The blocks up to the brace that closes them, and the line with that brace."""
    blocks = [Block()]
    while (line := reader.next()) is not None:
        if line.startswith("}"):
            return blocks, line
        if line.startswith("^"):
            label, _, rest = line[1:].rstrip(":").partition("(")
            names, types = _arguments(rest.rstrip(")")) if rest else ((), ())
            block = Block(label.strip(), names, types)
            blocks = [block] if blocks == [Block()] else [*blocks, block]
        else:
            blocks[-1].ops.append(_operation(reader, line))
    raise TtirError("the text ends inside of a region")


def _operation(reader: _Reader, line: str) -> Op:
    found = _RESULTS.match(line)
    body = line[found.end() :] if found else line
    named = _OPERATION.match(body)
    if named is None:
        raise TtirError(f"no operation: {line}")
    op = Op(named[1], results=_results(found[1]) if found else ())
    tail = ""
    while line.endswith("{"):
        blocks, line = _region(reader)
        op.regions.append(blocks)
        tail = line.lstrip("})").rstrip("{(")
    text = body[named.end() :]
    if op.regions:
        text = text.rstrip("{").rstrip("(") + " " + tail
    _fill(op, text)
    return op


def _results(text: str) -> tuple[str, ...]:
    """Names of the results of ``%0:2 = …``: ``%0#0`` and ``%0#1``."""
    names: list[str] = []
    for part in split(text):
        name, _, count = part.partition(":")
        names += [f"{name}#{index}" for index in range(int(count))] if count else [name]
    return tuple(names)


def _fill(op: Op, text: str) -> None:
    """Tell attributes, types and operands of an operation apart."""
    text = _without_attributes(op, text)
    if op.name == "scf.for":
        _for(op, text)
        return
    if op.name == "scf.while":
        pairs = _BOUND.findall(text.split(" : ")[0])
        op.binds = tuple(name for name, _ in pairs)
        op.operands = tuple(value for _, value in pairs)
        return
    if op.name.startswith("cf."):
        _jump(op, text)
        return
    text, op.given, op.made = _types(op, text)
    op.operands = tuple(NAME.findall(_masked(text)))
    op.text = text.strip()


def _without_attributes(op: Op, text: str) -> str:
    masked = _masked(text)
    while "{" in masked:
        start = masked.index("{")
        end = closing(masked, start)
        for part in split_masked(text[start + 1 : end], masked[start + 1 : end]):
            key, _, value = part.partition(" = ")
            op.attributes[key.strip()] = value.strip()
        if masked[start - 1 : start] == "<":
            start, end = start - 1, end + 1
        text = text[:start] + text[end + 1 :]
        masked = masked[:start] + masked[end + 1 :]
    return text


def split_masked(text: str, masked: str) -> list[str]:
    """`split` of `text`, whose quoted parts are harmless in `masked`."""
    parts, begin = [], 0
    for part in split(masked):
        begin = masked.index(part, begin)
        parts.append(text[begin : begin + len(part)])
        begin += len(part)
    return parts


def _types(op: Op, text: str) -> tuple[str, tuple[Type, ...], tuple[Type, ...]]:
    """The text before the types, and the types of operands and results, as far as they are written."""
    masked = _masked(text)
    if op.name == "scf.if":
        before, arrow, after = masked.partition("->")
        return text[: len(before)], (), _listed(after) if arrow else ()
    position = masked.rfind(" : ")
    if position < 0:
        position = 0 if masked.startswith(": ") else -1
    if position < 0:
        return text, (), ()
    written = text[position:].lstrip(" :")
    for arrow in ("->", " to "):
        if arrow in written:
            before, _, after = written.rpartition(arrow)
            return text[:position], _listed(before), _listed(after)
    return text[:position], _listed(written), ()


def _listed(text: str) -> tuple[Type, ...]:
    text = text.strip()
    if text.startswith("(") and closing(text, 0) == len(text) - 1:
        text = text[1:-1]
    return tuple(type_of(part) for whole in split(text) for part in split(whole, "*"))


def _for(op: Op, text: str) -> None:
    head, _, carried = text.partition("iter_args(")
    variable, *bounds = NAME.findall(head.split("->")[0])
    pairs = _BOUND.findall(carried.split("->")[0])
    op.binds = (variable, *(name for name, _ in pairs))
    op.operands = (*bounds[:3], *(value for _, value in pairs))
    op.text = "unsigned" if head.strip().startswith("unsigned") else ""


def _jump(op: Op, text: str) -> None:
    """``cf.cond_br %c, ^bb1, ^bb2(%x : i32)`` and ``cf.br ^bb1``."""
    before, *targets = text.split("^")
    op.operands = tuple(NAME.findall(before))
    op.targets = tuple(
        (re.match(r"\w+", target)[0], tuple(NAME.findall(target.split(" : ")[0])))  # type: ignore[index]
        for target in targets
    )
