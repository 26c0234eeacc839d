"""Explain in one line why a file is no trace."""

from __future__ import annotations

import os
import re

import msgspec

from gapless.files.foreign import identify_foreign
from gapless.files.kinds import HEAD

_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_ZIP = b"PK\x03\x04"
_SQLITE = b"SQLite format 3\0"
_LFS = b"version https://git-lfs"


def is_hopeless(start: bytes) -> bool:
    """Whether a file with this start cannot be a JSON object or list."""
    text = start.lstrip(_BLANK)
    return bool(text) and text[:1] not in b"{["


def explain_refusal(data: bytes, name: str, whole: bool) -> str:
    """Return why the file `name`, which begins with `data` (and ends with it, if `whole`), is no trace."""
    other = identify_foreign(data[:HEAD], os.path.basename(name))
    if other is not None:
        return other.refusal(name)
    text = data.lstrip(_BLANK)
    if not text:
        return f"{name} is empty: the profiler wrote nothing, or was killed before it could"
    if _PICKLE.match(data):
        return f"{name} is a Python pickle (such as a memory snapshot), not a trace: see gapless memory"
    if data.startswith(_ZIP):
        return f"{name} was written by torch.save: it contains tensors, not a trace"
    if data.startswith(_SQLITE):
        return f"{name} is a database (such as Nsight Systems exports), not a PyTorch profiler trace"
    if data.startswith(_LFS):
        return f"{name} is a Git LFS pointer, not the file itself: git lfs pull"
    if is_hopeless(data):
        if b"\0" in data[:1024] or sum(byte < 9 or byte > 126 for byte in text[:256]) > 64:
            return f"{name} is a binary file, not JSON: it starts with {data[:8].hex(' ')}"
        first = text[:24].decode(errors="replace").split("\n")[0]
        return f"{name} is not JSON: it starts with {first!r}"
    if not whole:
        return (
            f'{name} is not a PyTorch profiler trace: it has no "traceEvents" in its first '
            f"{len(data) >> 20} MB"
        )
    return _explain_json(data.strip(_BLANK), name)


def _explain_json(data: bytes, name: str) -> str:
    try:
        decoded = msgspec.json.decode(data)
    except RecursionError:
        return f"{name} is not a PyTorch profiler trace: it is endlessly nested JSON"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "truncated" in str(error):
            return f"{name} ends before its first event: was the job killed while it wrote the file?"
        return (
            f'{name} is not a PyTorch profiler trace: it has no "traceEvents", and is broken JSON ({error})'
        )
    if isinstance(decoded, list):
        return f"{name} is not a PyTorch profiler trace: it is a JSON list, but not of events"
    if str(decoded.get("format", "")).startswith("gapless"):
        return f"{name} is a Gapless session, not a trace: gapless show {name}"
    keys = ", ".join(repr(key) for key in list(decoded)[:4])
    content = f"it is JSON with {keys}" if keys else "it is an empty JSON object"
    return f'{name} is not a PyTorch profiler trace: {content}, but no "traceEvents"'
