"""Run Python in a fork of a process that has already imported torch and other slow packages.

``python fork_server.py NUMBER`` (of a listening socket) imports what takes long, and then makes a copy of
itself for each request; the copy runs what ``python WORDS…`` would. Importing is most of what a short run
takes. `run` asks for a copy, or starts a process where that is not the same.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import re
import runpy
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

Finished = subprocess.CompletedProcess[str]
IMPORTED = ("numpy", "torch", "torch.utils.data", "msgspec", "click", "gapless.emulation.distributed.nccl")
ROOMS = (
    *("analyze", "capture", "commands", "emulation.dry", "emulation.races"),
    *("emulation.distributed", "loading", "memory", "model", "render", "replay", "rules"),
)
"""Parts of Gapless that are imported whole."""
SLOW = "torchmetrics"
"""What takes seconds to import; for scripts that import it."""
READ_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "CUDA", "MALLOC_", "LC_", "LANG")
"""Variables with these beginnings are read before a copy could see another value."""
_OURS = ("PYTEST", "NO_COLOR", "FORCE_COLOR")
_CACHE = Path(__file__).parents[1] / ".pytest_cache"
# Lists of fonts and compiled code are not for the user's home, nor for a folder that all users share.
os.environ.setdefault("MPLCONFIGDIR", str(_CACHE / "matplotlib"))
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_CACHE / "torchinductor"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
ENVIRONMENT |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "GAPLESS_HOST": "usual"}
"""What a started process is given: nothing that torch, a library or a test has set since in this one."""
LIMIT = 120.0
"""Seconds after which a process has failed that has a core to itself."""


def patience(seconds: float) -> float:
    """How long something may take that has `seconds` where nobody is in its way: as many times as long as
    there are processes for each core now, since its share of one is so much smaller."""
    if not hasattr(os, "getloadavg"):
        return seconds
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


# -- the process that is copied ----------------------------------------------------------------------------


def serve(listener: socket.socket) -> dict[str, Any]:
    """Answer requests until whoever started this goes; in a copy, returns what it has to run."""
    ears = selectors.DefaultSelector()
    ears.register(listener, selectors.EVENT_READ, None)
    parent = os.getppid()
    while True:
        for key, _ in ears.select(timeout=5):
            if key.data is None:
                request = _read_request(listener, ears)
                if request is not None:
                    return request
                continue
            pid, connection = key.data
            ears.unregister(key.fileobj)
            os.close(key.fd)
            _, status = os.waitpid(pid, 0)
            with suppress(OSError):  # nobody may want to know any more
                connection.send(str(os.waitstatus_to_exitcode(status)).encode())
            connection.close()
        if os.getppid() != parent:
            os._exit(0)


def _read_request(listener: socket.socket, ears: selectors.BaseSelector) -> dict[str, Any] | None:
    """Make a copy for the next request; None in the process that was copied."""
    connection, _ = listener.accept()
    data, streams = _received(connection)
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        connection.send(f"{pid}\n".encode())
        ears.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
        return None
    for key in list(ears.get_map().values()):
        if key.data is not None:
            os.close(key.fd)
            key.data[1].close()
    ears.close()
    listener.close()
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return data


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request: a line of JSON, with the three streams beside its first byte."""
    data, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as rest:
        return json.loads(data + rest.readline()), list(streams)


def become(request: dict[str, Any]) -> None:
    """Run what ``python WORDS…`` would, in the folder and with the environment that were asked for."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    words: list[str] = request["words"]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = request["cwd"]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), vars(sys.modules["__main__"]))
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    for name in (*IMPORTED, *sys.argv[2:]):
        with suppress(ImportError):
            importlib.import_module(name)
    for room in ROOMS:
        package = importlib.import_module(f"gapless.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))


# -- who asks ----------------------------------------------------------------------------------------------


def run(words: tuple[str, ...], cwd: Path, timeout: float = LIMIT, **changes: str) -> Finished:
    """What ``python WORDS…`` printed with `changes` of the environment, and its exit status as
    `subprocess.run` has it.

    Raises:
        subprocess.TimeoutExpired: it had not ended after so many seconds, and was killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        environment = {**ENVIRONMENT, **changes}
        alike = not any(name.startswith(READ_AT_START) for name in changes)
        if hasattr(os, "pidfd_open") and alike and (words[0] in ("-m", "-c") or not words[0].startswith("-")):
            status = _copied(words, cwd, environment, timeout, (out.fileno(), err.fileno()))
        else:
            command = [sys.executable, *words]
            nothing = subprocess.DEVNULL
            status = subprocess.run(
                command,
                cwd=cwd,
                env=environment,
                stdin=nothing,
                stdout=out,
                stderr=err,
                timeout=patience(timeout),
            ).returncode
        received = []
        for stream in (out, err):
            stream.seek(0)
            received.append(stream.read().decode("utf-8", "backslashreplace").replace("\r\n", "\n"))
    if status is None:
        raise subprocess.TimeoutExpired([sys.executable, *words], timeout, *received)
    return subprocess.CompletedProcess([sys.executable, *words], status, *received)


def ranks(number: int, words: tuple[str, ...], cwd: Path, **changes: str) -> list[Finished]:
    """What each of so many ranks of one group printed, all running ``python WORDS…`` at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    size = str(number)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    _server(words, cwd)  # one for all of them
    with ThreadPoolExecutor(number) as pool:
        running = [
            pool.submit(run, words, cwd, **group, RANK=str(rank), LOCAL_RANK=str(rank), **changes)
            for rank in range(number)
        ]
        return [future.result() for future in running]


def _answers(connection: socket.socket, timeout: float) -> bool:
    """Whether something comes in time; how busy the machine is shows as time goes by."""
    began = time.monotonic()
    while (left := began + patience(timeout) - time.monotonic()) > 0:
        if select.select([connection], [], [], min(left, 10.0))[0]:
            return True
    return False


def _copied(
    words: tuple[str, ...], cwd: Path, environment: dict[str, str], timeout: float, streams: tuple[int, int]
) -> int | None:
    """The exit status of a copy that writes into `streams`; None where it had to be killed."""
    request = {"words": words, "cwd": os.fspath(cwd), "environment": environment}
    data = json.dumps(request).encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as connection, open(os.devnull) as nothing:
        connection.connect(_server(words, cwd))
        socket.send_fds(connection, [data[:1]], [nothing.fileno(), *streams])
        connection.sendall(data[1:])
        with connection.makefile("r") as said:
            pid = int(said.readline())
            if not _answers(connection, timeout):
                os.kill(pid, signal.SIGKILL)
                return None
            return int(said.readline())


def _server(words: tuple[str, ...], cwd: Path) -> str:
    """Where a process listens that has imported what ``python WORDS…`` will."""
    slow = any(_imports_slow(cwd / word) for word in words if word.endswith(".py"))
    return _address(os.getpid(), *([SLOW] if slow else []))


def _imports_slow(script: Path, visited: frozenset[str] = frozenset()) -> bool:
    """Whether `script`, or a module beside it that it imports, says that it imports what is slow."""
    text = script.read_text(errors="replace") if script.is_file() else ""
    names = frozenset(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)) - visited
    return SLOW in names or any(
        _imports_slow(script.with_name(f"{name}.py"), visited | names) for name in names
    )


@cache
def _address(pid: int, *imported: str) -> str:
    """Where the process listens that is copied for the process `pid`, which starts it."""
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), *imported],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            preexec_fn=heed_interrupts,
        )
    atexit.register(process.wait)
    atexit.register(process.kill)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return path


def heed_interrupts() -> None:
    """In a new process: end when interrupted or hung up, which a shell's background job may not do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


if __name__ == "__main__":
    main()
