"""``gapless trace --evidence``: what profiles show about operators, for the table of waits."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gapless.commands import _output
from gapless.errors import EXIT_OK, UnreadableInput, UsageError
from gapless.files.output import write_whole


def write_evidence(traces: Sequence[str], shapes: bool, output: str | None) -> int:
    """Print what the profiles show about operators, or save it as `output`; return the exit status.

    Raises:
        UsageError: a profile comes from standard input, which cannot be read twice.
    """
    from gapless.analyze.evidence import add_counts, count_signatures, format_lines, read_arguments
    from gapless.trace.find import find_traces
    from gapless.trace.read import read

    if "-" in traces:
        raise UsageError("--evidence reads a profile twice: pass a file, not standard input")
    parts, status = [], EXIT_OK
    for path in find_traces(traces, []):
        try:
            parts.append(count_signatures(read(path), read_arguments(path), shapes))
        except UnreadableInput as error:
            _output.say(str(error))
            status = UnreadableInput.exit_code
    text = "\n".join(format_lines(add_counts(parts))) + "\n"
    if not parts:
        return UnreadableInput.exit_code
    if output is None:
        _output.write(sys.stdout, text)
    else:
        write_whole(text.encode("utf-8", "backslashreplace"), output)
    return status
