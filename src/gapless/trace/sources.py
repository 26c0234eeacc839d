"""Where a trace's bytes come from: a file, gzip or not, standard input, or anything fsspec opens."""

from __future__ import annotations

import gzip
from typing import BinaryIO, cast


def open_source(path: str) -> BinaryIO:
    """The uncompressed bytes of `path`, to be read in pieces."""
    raw = open(path, "rb")  # noqa: SIM115 - handed to the caller
    magic = raw.peek(2)[:2]
    if magic == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    return raw
