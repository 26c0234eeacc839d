"""Parse TTIR text (``str(module)``).

Triton prints each operation on a line of its own, with regions between braces on lines of theirs. Names,
attributes and types are separated by brackets, not by a grammar for each operation, so that words which
differ between Triton's versions do no harm.
"""

from __future__ import annotations

import re

from gapless.kernels.nodes import CodeBlock, Function, Module, Op, ValueType, parse_type

VALUE_NAME = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RESULTS = re.compile(r"((?:%[\w$.\-]+(?::\d+)?(?:, )?)+) = ")
_OPERATION = re.compile(r'"?([\w.]+)"?')
_INITIAL_VALUE = re.compile(r"(%[\w$.\-]+) = (%[\w$.\-]+(?:#\d+)?)")
_FUNCTION = re.compile(r"tt\.func (public |private )?@(\"[^\"]*\"|[\w$.\-]+)\(")
_OPEN, _CLOSE = "<({[", ">)}]"


class TtirError(ValueError):
    """A line of TTIR that cannot be parsed."""


def parse(text: str) -> Module:
    """Parse the functions in `text`.

    Raises:
        TtirError: it contains no kernel, or a line that cannot be parsed.
    """
    lines = [line for line in map(_clean, text.splitlines()) if line and not line.startswith("#")]
    reader = _LineReader(lines)
    functions: dict[str, Function] = {}
    while (line := reader.next()) is not None:
        header = _FUNCTION.match(line)
        if header is None:
            continue
        if not line.endswith("{"):  # declared elsewhere
            continue
        blocks, _ = _parse_region(reader)
        end = find_closing(line, header.end() - 1)
        names, types = _parse_arguments(line[header.end() : end])
        blocks[0].names = blocks[0].names or names
        name = header[2].strip('"')
        functions[name] = Function(name, names, types, blocks, (header[1] or "").strip() != "private")
    if not any(function.public for function in functions.values()):
        raise TtirError("no kernel in it")
    return Module(functions)


def _clean(line: str) -> str:
    """Return a line without locations, comments and surrounding space."""
    line = line.strip()
    while " loc(" in line:
        start = line.index(" loc(")
        line = line[:start] + line[find_closing(_mask_strings(line), start + 4) + 1 :]
    if line.startswith("^"):
        line = line.split(" //")[0].rstrip()
    return line


def _mask_strings(text: str) -> str:
    """Return `text` with quoted parts replaced by underscores of the same length."""
    return _STRING.sub(lambda match: '"' + "_" * (len(match[0]) - 2) + '"', text) if '"' in text else text


def find_closing(text: str, start: int) -> int:
    """Return the position of the bracket that closes the one at `start`."""
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


def split_outside_brackets(text: str, mark: str = ",") -> list[str]:
    """Split `text` at marks outside of brackets, without empty parts."""
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


class _LineReader:
    """Yields lines one after the other."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = iter(lines)

    def next(self) -> str | None:
        return next(self._lines, None)


def _parse_arguments(text: str) -> tuple[tuple[str, ...], tuple[ValueType, ...]]:
    """Return names and types of ``%a: i32, %b: tensor<4xf32> {…}``."""
    names, types = [], []
    for part in split_outside_brackets(text):
        name, _, rest = part.partition(":")
        names.append(name.strip())
        types.append(parse_type(rest.split(" {")[0]))
    return tuple(names), tuple(types)


def _parse_region(reader: _LineReader) -> tuple[list[CodeBlock], str]:
    """Return the blocks up to the closing brace, and the line with that brace."""
    blocks = [CodeBlock()]
    while (line := reader.next()) is not None:
        if line.startswith("}"):
            return blocks, line
        if line.startswith("^"):
            label, _, rest = line[1:].rstrip(":").partition("(")
            names, types = _parse_arguments(rest.rstrip(")")) if rest else ((), ())
            block = CodeBlock(label.strip(), names, types)
            blocks = [block] if blocks == [CodeBlock()] else [*blocks, block]
        else:
            blocks[-1].ops.append(_parse_operation(reader, line))
    raise TtirError("the text ends inside of a region")


def _parse_operation(reader: _LineReader, line: str) -> Op:
    match = _RESULTS.match(line)
    body = line[match.end() :] if match else line
    named = _OPERATION.match(body)
    if named is None:
        raise TtirError(f"no operation: {line}")
    op = Op(named[1], results=_parse_results(match[1]) if match else ())
    tail = ""
    while line.endswith("{"):
        blocks, line = _parse_region(reader)
        op.regions.append(blocks)
        tail = line.lstrip("})").rstrip("{(")
    text = body[named.end() :]
    if op.regions:
        text = text.rstrip("{").rstrip("(") + " " + tail
    _parse_operands(op, text)
    return op


def _parse_results(text: str) -> tuple[str, ...]:
    """Return the names of the results of ``%0:2 = …``: ``%0#0`` and ``%0#1``."""
    names: list[str] = []
    for part in split_outside_brackets(text):
        name, _, count = part.partition(":")
        names += [f"{name}#{index}" for index in range(int(count))] if count else [name]
    return tuple(names)


def _parse_operands(op: Op, text: str) -> None:
    """Parse attributes, types and operands of an operation into `op`."""
    text = _take_attributes(op, text)
    if op.name == "scf.for":
        _parse_for(op, text)
        return
    if op.name == "scf.while":
        pairs = _INITIAL_VALUE.findall(text.split(" : ")[0])
        op.binds = tuple(name for name, _ in pairs)
        op.operands = tuple(value for _, value in pairs)
        return
    if op.name.startswith("cf."):
        _parse_jump(op, text)
        return
    text, op.operand_types, op.result_types = _take_types(op, text)
    op.operands = tuple(VALUE_NAME.findall(_mask_strings(text)))
    op.text = text.strip()


def _take_attributes(op: Op, text: str) -> str:
    """Move the attributes in `text` to `op`, and return the text without them."""
    masked = _mask_strings(text)
    while "{" in masked:
        start = masked.index("{")
        end = find_closing(masked, start)
        for part in split_masked(text[start + 1 : end], masked[start + 1 : end]):
            key, _, value = part.partition(" = ")
            op.attributes[key.strip()] = value.strip()
        if masked[start - 1 : start] == "<":
            start, end = start - 1, end + 1
        text = text[:start] + text[end + 1 :]
        masked = masked[:start] + masked[end + 1 :]
    return text


def split_masked(text: str, masked: str) -> list[str]:
    """Split `text` where `masked`, its copy with masked strings, has commas outside of brackets."""
    parts, begin = [], 0
    for part in split_outside_brackets(masked):
        begin = masked.index(part, begin)
        parts.append(text[begin : begin + len(part)])
        begin += len(part)
    return parts


def _take_types(op: Op, text: str) -> tuple[str, tuple[ValueType, ...], tuple[ValueType, ...]]:
    """Return the text before the types, and the types of operands and results as far as printed."""
    masked = _mask_strings(text)
    if op.name == "scf.if":
        before, arrow, after = masked.partition("->")
        return text[: len(before)], (), _parse_types(after) if arrow else ()
    position = masked.rfind(" : ")
    if position < 0:
        position = 0 if masked.startswith(": ") else -1
    if position < 0:
        return text, (), ()
    written = text[position:].lstrip(" :")
    for arrow in ("->", " to "):
        if arrow in written:
            before, _, after = written.rpartition(arrow)
            return text[:position], _parse_types(before), _parse_types(after)
    return text[:position], _parse_types(written), ()


def _parse_types(text: str) -> tuple[ValueType, ...]:
    text = text.strip()
    if text.startswith("(") and find_closing(text, 0) == len(text) - 1:
        text = text[1:-1]
    return tuple(
        parse_type(part)
        for whole in split_outside_brackets(text)
        for part in split_outside_brackets(whole, "*")
    )


def _parse_for(op: Op, text: str) -> None:
    head, _, carried = text.partition("iter_args(")
    variable, *bounds = VALUE_NAME.findall(head.split("->")[0])
    pairs = _INITIAL_VALUE.findall(carried.split("->")[0])
    op.binds = (variable, *(name for name, _ in pairs))
    op.operands = (*bounds[:3], *(value for _, value in pairs))
    op.text = "unsigned" if head.strip().startswith("unsigned") else ""


def _parse_jump(op: Op, text: str) -> None:
    """Parse ``cf.cond_br %c, ^bb1, ^bb2(%x : i32)`` and ``cf.br ^bb1``."""
    before, *targets = text.split("^")
    op.operands = tuple(VALUE_NAME.findall(before))
    op.targets = tuple(
        (re.match(r"\w+", target)[0], tuple(VALUE_NAME.findall(target.split(" : ")[0])))  # type: ignore[index]
        for target in targets
    )
