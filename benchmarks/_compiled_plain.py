"""A script run with torch as it is, on the CPU: what TORCH_LOGS="graph_breaks,recompiles" says, as JSON.

Only what inductor makes of a graph is replaced, by the graph as it stands: `torch.compile` and all that
decides about graphs, breaks and recompilations are torch's own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import runpy
import sys

_BREAK = re.compile(r'File "([^"]+)", line (\d+)')
_AGAIN = re.compile(r"Recompiling function \S+ in (\S+):(\d+)")


class _Listener(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def place_text(script: str, file: str, line: str) -> str:
    """Return the line number, preceded by the file's name unless the file is the script."""
    same = os.path.abspath(file) == os.path.abspath(script)
    return line if same else f"{os.path.basename(file)}:{line}"


def _user_places(places: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the (file, line) pairs outside installed packages and Python itself."""
    inside = (sys.prefix, sys.base_prefix, os.path.abspath(__file__))
    return [
        (file, line)
        for file, line in places
        if not file.startswith("<") and not os.path.abspath(file).startswith(inside)
    ]


def main(script: str) -> None:
    """Run `script`, and print what was logged and counted."""
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import compile_fx

    torch._logging.set_logs(graph_breaks=True, recompiles=True)
    breaks: list[str] = []
    again: list[str] = []
    for name in list(logging.root.manager.loggerDict):
        messages = {"__graph_breaks": breaks, "__recompiles": again}.get(name.rpartition(".")[2])
        if messages is not None:
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [_Listener(messages)], False
            logger.setLevel(logging.DEBUG)
    compile_fx.compile_fx = lambda graph, *_, **__: graph.forward
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        runpy.run_path(script, run_name="__main__")
    lines = {place_text(script, *own[-1]) for text in breaks if (own := _user_places(_BREAK.findall(text)))}
    places = [match for text in again if (match := _AGAIN.search(text)) is not None]
    own = sorted(int(place[2]) for place in places if os.path.abspath(place[1]) == os.path.abspath(script))
    print(
        json.dumps({
            "breaks": len(breaks),
            "lines": sorted(lines),
            "recompiles": len(again),
            "functions": sorted(set(own)),
            "graphs": counters["stats"]["unique_graphs"],
        })
    )  # fmt: skip


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    main(sys.argv[0])
