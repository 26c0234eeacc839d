"""Files that Gapless saves: written whole or not at all, read with one clear error."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from gapless.errors import UnreadableInput
from gapless.files.input import PathName, read_whole
from gapless.files.output import write_whole
from gapless.model._sound import find_problem

Savable = TypeVar("Savable")
Value = TypeVar("Value")

CHANGED_NOTE = "this file was changed after Gapless saved it: what is said here is what it says now"
"""The note of a value whose file was edited after saving."""
_TAIL = b',"checksum":"%s"}'
"""The end of a saved file, which the checksum does not cover."""


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0
    checksum: str = ""


class SavedFormat(Generic[Savable, Value]):
    """A kind of file: JSON that begins with `format` and `version`, has the fields of `document`, and ends
    with their `checksum`.

    `noun` names it in messages. `pack` returns the fields to save, `unpack` turns a document into a value
    again or raises an error that says why it is damaged. No number in it is below `least`.
    """

    def __init__(
        self,
        noun: str,
        format: str,
        version: int,
        document: type[msgspec.Struct],
        pack: Callable[[Savable], dict[str, Any]],
        unpack: Callable[[Any], Value],
        least: float = -1,
    ) -> None:
        self.noun, self.format, self.version, self.document = noun, format, version, document
        self._pack, self._unpack, self._least = pack, unpack, least

    def encode(self, value: Savable) -> bytes:
        """Encode `value` as JSON; :meth:`decode` returns an equal value."""
        document = self.document(format=self.format, version=self.version, **self._pack(value))
        try:
            data = msgspec.json.encode(document)
        except UnicodeEncodeError:
            # Arguments and paths may hold bytes that are not text; JSON cannot, so they are spelled out.
            data = msgspec.json.encode(_escape_surrogates(msgspec.to_builtins(document)))
        return data[:-1] + _TAIL % _checksum(data)

    def decode(self, data: bytes, name: str = "") -> Value:
        """Decode the value in `data`, called `name` in messages; if `data` was edited, its notes say so.

        Raises:
            UnreadableInput: it holds none, or one of a version that this Gapless does not know.
        """
        name = name or self.noun
        try:
            head = msgspec.json.decode(data, type=_Head)
        except RecursionError:
            raise UnreadableInput(f"{name} is not a saved {self.noun}: it nests without end") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableInput(f"{name} is not a saved {self.noun}: {error}") from None
        if head.format != self.format:
            raise UnreadableInput(
                f'{name} is JSON but not a saved {self.noun} (no "format": "{self.format}")'
            )
        if not 1 <= head.version <= self.version:
            raise UnreadableInput(
                f"{name} is a {self.noun} of version {head.version}, but this Gapless reads only up to "
                f"{self.version}: upgrade Gapless"
            )
        try:
            value = self._unpack(msgspec.json.decode(data, type=self.document))
            defect = find_problem(value, self._least)
        except RecursionError:
            defect = "it nests without end"
        except (msgspec.DecodeError, IndexError, TypeError, ValueError, OverflowError) as error:
            defect = str(error)
        if defect:
            raise UnreadableInput(f"{name} is a damaged {self.noun}: {defect}")
        return value if self._is_unchanged(data, head.checksum, value) else _with_changed_note(value)

    def _is_unchanged(self, data: bytes, checksum: str, value: Any) -> bool:
        """Whether `data`, which holds `value`, has the right `checksum` or none, as earlier versions wrote.

        Other programs may lay JSON out anew, sort its fields or write 1.0 as 1, which changes nothing.
        """
        tail = _TAIL % checksum.encode("utf-8", "replace")
        if not checksum or (
            data.endswith(tail) and _TAIL % _checksum(data.removesuffix(tail) + b"}") == tail
        ):
            return True
        try:
            fields = msgspec.json.decode(data)
            del fields["checksum"]
            if _checksum(msgspec.json.encode(fields)) == checksum.encode():
                return True
        except (msgspec.DecodeError, ValueError, RecursionError):  # in a field that nobody knows
            return False
        return self.encode(value).endswith(tail)

    def save(self, value: Savable, path: PathName) -> None:
        """Write `value` to `path`, whole or not at all.

        Raises:
            UnreadableInput: `path` cannot be written.
        """
        write_whole(self.encode(value), path)

    def load(self, path: PathName) -> Value:
        """Load what was saved at `path`.

        Raises:
            UnreadableInput: the file is missing, or :meth:`decode` refuses it.
        """
        return self.decode(read_whole(path), str(path))


def _checksum(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def _with_changed_note(value: Any) -> Any:
    """Return `value`, or each of several, with the note that its file was edited."""
    if isinstance(value, tuple):
        return tuple(map(_with_changed_note, value))
    return msgspec.structs.replace(value, notes=tuple(dict.fromkeys([*value.notes, CHANGED_NOTE])))


def _escape_surrogates(value: Any) -> Any:
    """Return `value` with characters that UTF-8 cannot encode written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_escape_surrogates(key): _escape_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escape_surrogates(item) for item in value]
    return value
