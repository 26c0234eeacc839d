"""The attacks of `attacks.py`: what each prepares in its folder, and which command it is about."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import socket
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from trace_builder import training

SAVED = TESTS / "model" / "saved"
TRACE = training(steps=3).text()


@dataclass(frozen=True)
class Attack:
    """A command (`words`), what `prepare` makes in its folder first, and the files it may change.

    `reports` says whether it has to write a report, `statuses` the exit codes allowed, `limit` the size of a
    file in bytes (0: none), `saves` a file that has to be there afterwards.
    """

    name: str
    words: Sequence[str]
    prepare: Callable[[Path], object] = lambda folder: None
    may_change: tuple[str, ...] = ()
    reports: bool = False
    statuses: tuple[int, ...] = (0, 3)
    limit: int = 0
    saves: str = ""


def _link(name: str, aim: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).symlink_to(aim)


def _pipe(name: str) -> Callable[[Path], object]:
    return lambda folder: os.mkfifo(folder / name)


def _file(name: str, data: bytes, mode: int = 0o644) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(mode)

    return make


def _make_all(*makers: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [make(folder) for make in makers]


def _folder(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).mkdir()


def _hard_link(folder: Path) -> None:
    (folder / "out").write_bytes(b"old")
    os.link(folder / "out", folder / "other")


def _read_by_another(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    threading.Thread(target=(folder / "pipe").read_bytes, daemon=True).start()


def _feed_through_pipe(data: bytes) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        os.mkfifo(folder / "fed")
        threading.Thread(target=(folder / "fed").write_bytes, args=(data,), daemon=True).start()

    return make


def _zip(data: bytes, count: int = 1) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(count):
            archive.writestr(f"{number}.json", data)
    return held.getvalue()


def _session(**more: object) -> bytes:
    session = json.loads((SAVED / "session.json").read_bytes())
    session["session"].update(more)
    return json.dumps(session).encode()


def _session_with_code(code: str) -> bytes:
    session = json.loads((SAVED / "session.json").read_bytes())
    for line in session["lines"]:
        line["file"] = line["code"] = code
    return json.dumps(session).encode()


def _socket(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(folder / name))

    return make


def _deep(folder: Path) -> None:
    for _ in range(12):
        folder /= "d" * 250
    folder.mkdir(parents=True)
    (folder / "x.json").write_bytes(TRACE)


SCRIPT = """
import os, signal, threading, torch

net = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(40):
    loss = net(torch.ones(2, 4, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    if step == 20:
        """
"""A script that does something to itself in a step."""
CHECK = ("check", "-q", "--steps", "all", "--no-loader", "-o", "out", "train.py")


def _check(name: str, line: str, *statuses: int, limit: int = 0, saves: str = "out") -> Attack:
    """Return an attack in which a script that is checked does `line` in its 21st step."""
    return Attack(
        name, CHECK, _file("train.py", (SCRIPT + line).encode()), ("out",), not limit, statuses, limit, saves
    )


EVENT = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1},'
BOMB = gzip.compress(b'{"schemaVersion":1,"traceEvents":[' + EVENT * (3 << 20))
NOISE = random.Random(1).randbytes(1 << 20)
SAVE = ("trace", "-q", "-o")

ATTACKS = (
    Attack(
        "-o a link to a file",
        [*SAVE, "out", "t.json"],
        _make_all(_file("real", b"x", 0o640), _link("out", "real")),
        ("real",),
        True,
        (0,),
    ),
    Attack("-o a link to nothing", [*SAVE, "out", "t.json"], _link("out", "real"), ("real",), True, (0,)),
    Attack("-o a link to itself", [*SAVE, "out", "t.json"], _link("out", "out")),
    Attack(
        "-o a link to a folder", [*SAVE, "out", "t.json"], _make_all(_folder("there"), _link("out", "there"))
    ),
    Attack(
        "-o a link to standard output",
        [*SAVE, "out", "t.json"],
        _link("out", "/proc/self/fd/1"),
        (),
        True,
        (0,),
    ),
    Attack("-o /dev/stdout", [*SAVE, "/dev/stdout", "t.json"], reports=True, statuses=(0,)),
    Attack("-o /dev/fd/2", [*SAVE, "/dev/fd/2", "t.json"], reports=True, statuses=(0,)),
    Attack("-o a descriptor that is not open", [*SAVE, "/dev/fd/99", "t.json"]),
    Attack("-o a descriptor of another process", [*SAVE, "/proc/1/fd/1", "t.json"]),
    Attack("-o /dev/null", [*SAVE, "/dev/null", "t.json"], reports=True, statuses=(0,)),
    Attack("-o a pipe that nobody reads", [*SAVE, "pipe", "t.json"], _pipe("pipe"), (), True, (3,)),
    Attack("-o a pipe that somebody reads", [*SAVE, "pipe", "t.json"], _read_by_another, (), True, (0,)),
    Attack(
        "-o a file of mode 600", [*SAVE, "out", "t.json"], _file("out", b"x", 0o600), ("out",), True, (0,)
    ),
    Attack("-o a file with two names", [*SAVE, "out", "t.json"], _hard_link, ("out", "other"), True, (0,)),
    Attack("-o .", [*SAVE, ".", "t.json"], statuses=(3,)),
    Attack("-o ..", [*SAVE, "..", "t.json"], statuses=(3,)),
    Attack("-o nothing", [*SAVE, "", "t.json"], statuses=(2, 3)),
    Attack("-o a folder", [*SAVE, "out", "t.json"], _folder("out"), statuses=(3,)),
    Attack("-o a name with a slash at its end", [*SAVE, "out/", "t.json"], statuses=(3,)),
    Attack("-o in a folder that is not there", [*SAVE, "no/out", "t.json"], statuses=(3,)),
    Attack("-o below a file", [*SAVE, "t.json/out", "t.json"], statuses=(3,)),
    Attack("-o a name of 300 characters", [*SAVE, "x" * 300, "t.json"], statuses=(3,)),
    Attack(
        "-o a name of 255 characters",
        [*SAVE, "x" * 255, "t.json"],
        may_change=("x" * 255,),
        reports=True,
        statuses=(0,),
    ),
    Attack("-o on a full disk", [*SAVE, "out", "t.json"], _file("out", b"old"), (), True, (3,), 100),
    Attack(
        "-o on a full disk, a file with two names", [*SAVE, "out", "t.json"], _hard_link, (), True, (3,), 100
    ),
    Attack(
        "-o the trace itself",
        [*SAVE, "t.json", "t.json"],
        statuses=(2,),
    ),
    Attack("--perfetto the trace itself", ["trace", "-q", "--perfetto", "t.json", "t.json"], statuses=(2,)),
    Attack(
        "--perfetto a link",
        ["trace", "-q", "--perfetto", "out", "t.json"],
        _link("out", "real"),
        ("real",),
        True,
        (0,),
    ),
    Attack("a folder with a pipe", ["trace", "-q", "."], _pipe("x.json"), (), True, (0,)),
    Attack(
        "a folder with a link to a device", ["trace", "-q", "."], _link("x.json", "/dev/null"), (), True, (0,)
    ),
    Attack(
        "a folder with a link to /etc/passwd",
        ["trace", "-q", "."],
        _link("x.json", "/etc/passwd"),
        (),
        True,
        (0,),
    ),
    Attack(
        "a folder with links to itself",
        ["trace", "-q", "."],
        _make_all(_link("a", "."), _link("b", "."), _link("c", ".")),
        (),
        True,
        (0,),
    ),
    Attack(
        "a pattern over links to itself",
        ["trace", "-q", "**/*.json"],
        _make_all(_link("a", "."), _link("b", ".")),
        (),
        True,
        (0,),
    ),
    Attack("a folder with noise", ["trace", "-q", "."], _file("x.json", NOISE), (), True, (0,)),
    Attack("a pipe that nobody writes to", ["trace", "-q", "pipe"], _pipe("pipe"), statuses=(3,)),
    Attack(
        "a pipe that a session comes through", ["show", "fed"], _feed_through_pipe(_session()), (), True, (0,)
    ),
    Attack("a device", ["show", "/dev/null"], statuses=(3,)),
    Attack("a folder as a session", ["show", "."], statuses=(3,)),
    Attack("a gzip bomb as a trace", ["trace", "-q", "x.gz"], _file("x.gz", BOMB), statuses=(3,)),
    Attack("a gzip bomb as a snapshot", ["memory", "-q", "x.gz"], _file("x.gz", BOMB), statuses=(3,)),
    Attack("a zip bomb", ["trace", "-q", "x.zip"], _file("x.zip", _zip(EVENT * (1 << 20))), statuses=(3,)),
    Attack(
        "an archive of a thousand files",
        ["trace", "-q", "x.zip"],
        _file("x.zip", _zip(b"{}", 1000)),
        statuses=(3,),
    ),
    Attack(
        "a gzip of a gzip",
        ["trace", "-q", "x.gz"],
        _file("x.gz", gzip.compress(gzip.compress(TRACE))),
        statuses=(3,),
    ),
    Attack("half a gzip", ["trace", "-q", "x.gz"], _file("x.gz", gzip.compress(TRACE)[:800])),
    Attack(
        "a trace that nests without end",
        ["trace", "-q", "x.json"],
        _file("x.json", b'{"traceEvents":' + b"[" * 200_000),
        statuses=(3,),
    ),
    Attack(
        "a session that nests without end",
        ["show", "x.json"],
        _file("x.json", b'{"format":"gapless-session","version":1,"a":' + b"[" * 200_000),
        statuses=(3,),
    ),
    Attack(
        "a session of version 2**63",
        ["show", "x.json"],
        _file("x.json", b'{"format":"gapless-session","version":9223372036854775808}'),
        statuses=(3,),
    ),
    Attack(
        "a session of 2**60 ranks",
        ["show", "x.json"],
        _file("x.json", _session(environment={"world_size": 1 << 60 - 1})),
    ),
    Attack(
        "a session that lasted 1e300 s",
        ["show", "x.json"],
        _file("x.json", _session(duration=1e300)),
        statuses=(3,),
    ),
    Attack(
        "a session with events of no site",
        ["show", "x.json"],
        _file("x.json", _session(events=[{"site": 99, "tick": 1}])),
        statuses=(3,),
    ),
    Attack(
        "a session whose source is a pipe",
        ["show", "-f", "html", "x.json"],
        _make_all(_pipe("s.py"), _file("x.json", _session_with_code("s.py"))),
        (),
        True,
        (0,),
    ),
    Attack(
        "a session whose source is /dev/null",
        ["show", "-f", "html", "x.json"],
        _file("x.json", _session_with_code("/dev/null")),
        (),
        True,
        (0,),
    ),
    Attack(
        "a session whose lines steer the terminal",
        ["show", "x.json"],
        _file("x.json", _session_with_code("\x1b[2J\x07")),
        (),
        True,
        (0,),
    ),
    Attack(
        "a session whose lines are commands of a CI service",
        ["show", "-f", "github", "x.json"],
        _file("x.json", _session_with_code("a\n::error::b")),
        (),
        True,
        (0,),
    ),
    Attack(
        "a session whose lines are formulas",
        ["show", "-f", "csv", "x.json"],
        _file("x.json", _session_with_code("=cmd|' /C calc'!A0")),
        (),
        True,
        (0,),
    ),
    Attack(
        "a session whose lines are 100 kB long",
        ["show", "x.json"],
        _file("x.json", _session_with_code("x" * 100_000)),
        (),
        True,
        (0,),
    ),
    Attack(
        "a session whose lines nest in brackets",
        ["show", "x.json"],
        _file("x.json", _session_with_code("(" * 50_000)),
        (),
        True,
        (0,),
    ),
    Attack(
        "a pickle that calls something",
        ["memory", "-q", "x"],
        _file("x", b"cos\nsystem\n(S'touch owned'\ntR."),
        statuses=(3,),
    ),
    Attack("a snapshot of noise", ["memory", "-q", "x"], _file("x", b"\x80\x04" + NOISE), statuses=(3,)),
    Attack(
        "a profile of another program",
        ["trace", "-q", "x.nsys-rep"],
        _file("x.nsys-rep", NOISE),
        statuses=(3,),
    ),
    Attack("-o a socket", [*SAVE, "out", "t.json"], _socket("out"), statuses=(3,)),
    Attack("a socket", ["trace", "-q", "x.json"], _socket("x.json"), statuses=(3,)),
    Attack("a folder with a socket", ["trace", "-q", "."], _socket("x.json"), (), True, (0,)),
    Attack("a folder with a path of 3,000 characters", ["trace", "-q", "."], _deep, (), True, (0,)),
    Attack(
        "a folder with a name that is no text",
        ["trace", "-q", "."],
        _file(os.fsdecode(b"\xff\x1b[2J\n.json"), TRACE),
        (),
        True,
        (0,),
    ),
    _check(
        "a script that ends the process in a thread",
        "threading.Thread(target=os._exit, args=(5,)).start()",
        5,
    ),
    _check("a script that is told to stop", "os.kill(os.getpid(), signal.SIGTERM)", 143),
    _check("a script whose terminal goes", "os.kill(os.getpid(), signal.SIGHUP)", 129),
    _check("a script that is interrupted", "os.kill(os.getpid(), signal.SIGINT)", 130),
    _check(
        "a script that is interrupted twice",
        "[os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]",
        130,
    ),
    _check("a script that fails", "raise ValueError(step)", 1),
    _check(
        "a script that goes to another folder and deletes it",
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
        0,
    ),
    _check("a script that closes its output", "os.close(1)", 0),
    _check("a script whose session finds no room", "pass", 3, limit=1000, saves=""),
)
