"""An observer that knows nothing of `gapless.fixes`: what a script leaves when it has run as a whole.

It runs a script once under the emulated device, in a fork, and keeps what anybody could see afterwards: the
text that it printed, the last values of all models that are alive, the random state, how it ended, the waits
by the text of their lines, the number of races. Where two scripts leave the same, no difference between them
is visible at the end; it looks at no step in between.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import os
import re
import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

_CLOCK = re.compile(r"\d+\.\d+ ?m?s\b|\d+(?:\.\d+)? ?m?s/|\d+(?:\.\d+)? ?\w+/s")
_MAX_SECONDS = 120.0
"""A script that takes longer than this is in an endless loop."""


def observe(folder: Path, name: str, lines: set[int]) -> dict[str, Any]:
    """Run the script `name` in `folder`, and return what it left; `lines` are those to report as reached."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.setsid()
        os.chdir(folder)
        left = _run(name, str(folder / name), lines)
        with os.fdopen(write, "w") as stream:
            json.dump(left, stream)
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + _MAX_SECONDS
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        time.sleep(0.02)
    with os.fdopen(read) as stream:
        text = stream.read()
    return json.loads(text) if text else {"ending": "killed", "ran": []}


def _run(name: str, path: str, lines: set[int]) -> dict[str, Any]:
    import random

    import numpy as np
    import torch

    import gapless

    ran: set[int] = set()

    def trace(frame: Any, event: str, arg: object) -> Any:
        if os.path.basename(frame.f_code.co_filename) != name:
            return None
        if event == "line" and frame.f_lineno in lines:
            ran.add(frame.f_lineno)
        return trace

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    sys.argv = [name]
    sys.path.insert(0, os.path.dirname(path))
    text = io.StringIO()
    ending, scope = "end", {}
    with gapless.emulate() as run, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        sys.settrace(trace)
        try:
            scope = runpy.run_path(name, run_name="__main__")
        except SystemExit as error:
            ending = f"exit {error.code}"
        except BaseException as error:
            ending = f"{type(error).__name__}"
        sys.settrace(None)
        session = run.session
        states = torch.get_rng_state(), torch.cuda.get_rng_state()
    models = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
    digests = sorted(
        hashlib.sha256(
            b"".join(value.detach().float().numpy().tobytes() for value in model.state_dict().values())
        ).hexdigest()
        for model in models
        if list(model.parameters())
    )
    waits: Counter[str] = Counter()
    for event in session.events:
        line = session.sites[event.site].line
        waits[line.code if line is not None else ""] += event.waits
    del scope
    return {
        "ending": ending,
        "printed": _CLOCK.sub("", text.getvalue()),
        "models": digests,
        "random": [hashlib.sha256(state.numpy().tobytes()).hexdigest() for state in states],
        "waits": sum(waits.values()),
        "races": len(session.races),
        "ran": sorted(ran),
    }
