"""A script under `gapless check` behaves as it does under Python: the reference is Python itself."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from conftest import HERE, finish, start

BEHAVIOURS = {
    "prints": "print('hello')\nimport sys\nprint('there', file=sys.stderr)\n",
    "looks at its arguments": "import sys\nprint(sys.argv, __name__, __file__, __package__, __spec__)\n",
    "looks at its path": "import sys, os\nprint(sys.path[0], os.getcwd())\n",
    "imports its neighbour": "import neighbour\nprint(neighbour.VALUE)\n",
    "raises": "def f():\n    raise ValueError('no\\nluck')\nf()\n",
    "raises from another": (
        "def f():\n    1 / 0\n"
        "try:\n    f()\nexcept ZeroDivisionError as e:\n    raise RuntimeError('x') from e\n"
    ),
    "does not compile": "print('never')\ndef f(:\n",
    "has its own hook": (
        "import sys\nsys.excepthook = lambda kind, error, trace: print('mine', error)\n"
        "raise ValueError('x')\n"
    ),
    "leaves with a status": "import sys\nsys.exit(7)\n",
    "leaves with a large status": "import sys\nsys.exit(256 + 9)\n",
    "leaves with a negative status": "import sys\nsys.exit(-1)\n",
    "leaves with words": "import sys\nsys.exit('enough of it')\n",
    "leaves with nothing": "raise SystemExit\n",
    "leaves with None": "raise SystemExit(None)\n",
    "leaves at once": "import os, sys\nprint('x', flush=True)\nos._exit(3)\n",
    "changes directory": "import os\nos.chdir('/')\nprint(os.getcwd())\n",
    "registers for its end": "import atexit\natexit.register(print, 'the end')\nprint('before')\n",
    "pickles its own classes": (
        "import pickle\nclass A:\n    x = 1\nprint(pickle.loads(pickle.dumps(A())).x, A.__module__)\n"
    ),
    "uses dataclasses with annotations as strings": (
        "from dataclasses import dataclass, fields\nimport typing\n@dataclass\nclass A:\n    x: 'int'\n"
        "print(typing.get_type_hints(A), fields(A)[0].type)\n"
    ),
    "annotations are not postponed": "def f(x: int): ...\nprint(f.__annotations__)\n",
    "inspects itself": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))\n",
    "starts processes": (
        "import multiprocessing as mp\n"
        "def work(x):\n    return x * 2\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork'):\n"
        "        with mp.get_context(method).Pool(1) as pool:\n"
        "            print(pool.map(work, [1, 2]))\n"
    ),
    "forks": (
        "import os\npid = os.fork()\nif not pid:\n    raise SystemExit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    ),
    "forks and raises in the child": (
        "import os\npid = os.fork()\nif not pid:\n    raise ValueError('child')\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    ),
    "ends a child with a signal": (
        "import multiprocessing as mp, time\n"
        "def work():\n    time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    p = mp.get_context('fork').Process(target=work)\n"
        "    p.start()\n    p.terminate()\n    p.join()\n    print(p.exitcode)\n"
    ),
    "closes its output": "import sys\nprint('x')\nsys.stdout.close()\n",
    "closes its descriptors": "import os, sys\nprint('x', flush=True)\nos.close(1)\nsys.stdout = None\n",
    "redirects its output": "import sys, io\nprint('x')\nsys.stdout = io.StringIO()\nprint('y')\n",
    "prints bytes that are no text": "import sys\nsys.stdout.buffer.write(b'\\xff\\x00\\x1b[31m')\n",
    "leaves a thread": (
        "import threading\ndone = threading.Event()\n"
        "def work():\n    done.wait()\n    print('thread')\n"
        "threading.Thread(target=work).start()\nprint('main')\ndone.set()\n"
    ),
    "leaves a pool": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\n"
        "print(pool.submit(int, '3').result())\n"
    ),
    "raises in a thread": (
        "import threading\ndef work():\n    raise ValueError('thread')\n"
        "t = threading.Thread(target=work)\nt.start()\nt.join()\nprint('on')\n"
    ),
    "interrupts itself": "raise KeyboardInterrupt\n",
    "raises a group": (
        "import sys\nif sys.version_info < (3, 11):\n    raise ValueError('x')\n"
        "raise ExceptionGroup('many', [ValueError('a'), TypeError('b')])\n"
    ),
    "handles SIGTERM itself": (
        "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('handled'), sys.exit(4)))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    ),
    "replaces main": "import sys\nsys.modules['__main__'] = None\nprint('x')\n",
    "has another encoding": "# -*- coding: latin-1 -*-\nprint(len('\u00e9'))\n",
}

REPORT = re.compile(
    r"No syncs in train\.py, but no training step was seen\."
    r"|train\.py (?:failed|exited with status \d+|was interrupted) before its first step(?:: .+)?\."
)
"""How the verdict begins: why there was no step, where the script did not come to its end."""


@pytest.mark.parametrize("code", BEHAVIOURS.values(), ids=BEHAVIOURS)
def test_as_python_runs_it(code, write, plain_python, fake_gapless):
    write("train.py", code)
    write("neighbour.py", "VALUE = 42\n")
    expected = plain_python("train.py", "--lr", "3", "-m", "x")
    process = fake_gapless("check", "-q", "train.py", "--lr", "3", "-m", "x")
    interrupted = expected.returncode == -signal.SIGINT
    assert process.returncode == (128 + signal.SIGINT if interrupted else expected.returncode)
    assert process.stderr == expected.stderr
    report = process.stdout.replace("the end\n", "").removeprefix(expected.stdout.replace("the end\n", ""))
    assert REPORT.match(report, 1)
    assert len(REPORT.findall(process.stdout)) == 1
    assert ("before its first step" in report) == (expected.returncode != 0)
    assert ("the end\n" in process.stdout) == ("the end\n" in expected.stdout)


MODULES = {
    "module": ("pack/train.py", "pack.train"),
    "package": ("pack/__main__.py", "pack"),
}


@pytest.mark.parametrize(("file", "name"), MODULES.values(), ids=MODULES)
def test_modules_as_python_runs_them(file, name, write, plain_python, fake_gapless):
    write("pack/__init__.py", "import sys\nprint('package', sys.argv)\n")
    write("pack/other.py", "VALUE = 7\n")
    write(
        file,
        "import sys\nfrom .other import VALUE\n"
        "print(VALUE, sys.argv, sys.path[0], __name__, __file__, __package__, __spec__.name)\n"
        "raise ValueError('x')\n",
    )
    expected = plain_python("-m", name, "--steps", "3", "-o", "x")
    process = fake_gapless("check", "-q", "-m", name, "--steps", "3", "-o", "x")
    assert process.returncode == expected.returncode == 1
    assert process.stdout.startswith(expected.stdout)
    assert "ValueError: x" in process.stderr
    assert "runpy" not in process.stderr
    assert f"{os.sep}gapless{os.sep}" not in process.stderr


def test_a_folder_with_a_main(write, plain_python, fake_gapless):
    write("app/__main__.py", "import sys, helper\nprint(sys.argv, sys.path[0], __package__, helper.X)\n")
    write("app/helper.py", "X = 1\n")
    expected = plain_python("app", "1")
    assert fake_gapless("check", "-q", "app", "1").stdout.startswith(expected.stdout)


@pytest.mark.parametrize("name", ["nothing", "pack.nothing", "nothing.at.all", "empty"])
def test_no_such_module(name, write, fake_gapless):
    write("pack/__init__.py", "")
    write("empty/__init__.py", "")
    process = fake_gapless("check", "-q", "-m", name)
    assert process.returncode == 2
    assert process.stderr.startswith("gapless: no module named ")
    assert len(process.stderr.splitlines()) == 1


def test_a_module_that_misses_another_is_the_scripts_affair(write, fake_gapless):
    write("train.py", "import not_there\n")
    process = fake_gapless("check", "-q", "-m", "train")
    assert process.returncode == 1
    assert "ModuleNotFoundError: No module named 'not_there'" in process.stderr


LOOP = """import gpu
for i in range({n}):
    gpu.wait()
    gpu.step()
    {after}
print('reached the end')
"""


def assert_a_sync_in_each_of(steady, report):
    text = " ".join(report.split())
    assert "1 sync in every step" in text
    assert f"train.py · emulated NVIDIA Counting Frame · {steady} steady steps" in text


def test_stops_after_enough_steps(write, fake_gapless):
    write("train.py", LOOP.format(n=1000, after="print(i)"))
    process = fake_gapless("check", "train.py")
    assert process.returncode == 0
    assert process.stdout.splitlines()[:12] == [*map(str, range(11)), ""]
    assert_a_sync_in_each_of(10, process.stdout)
    assert "reached the end" not in process.stdout
    assert "gapless: stopped after 12 steps" in process.stderr
    assert "Traceback" not in process.stderr


def test_all_steps(write, fake_gapless):
    write("train.py", LOOP.format(n=30, after="pass"))
    process = fake_gapless("check", "--steps", "all", "train.py")
    assert "reached the end" in process.stdout
    assert_a_sync_in_each_of(28, process.stdout)


SWALLOWING = """import gpu
for i in range(30):
    try:
        gpu.wait()
        gpu.step()
    except:
        print('swallowed')
print('reached the end')
"""


def test_a_script_that_cannot_be_stopped(write, fake_gapless):
    write("train.py", SWALLOWING)
    process = fake_gapless("check", "--steps", "1", "train.py")
    assert process.stdout.count("swallowed") == 5
    assert "reached the end" in process.stdout
    assert "could not be stopped" in " ".join(process.stdout.split())
    assert process.returncode == 0


CONSEQUENCES = {
    "another exception": "raise RuntimeError('cleanup failed')",
    "a status": "raise SystemExit(1)",
    "nothing": "break",
}


@pytest.mark.parametrize("consequence", CONSEQUENCES.values(), ids=CONSEQUENCES)
def test_what_follows_from_stopping_is_no_failure(consequence, write, fake_gapless):
    write("train.py", SWALLOWING.replace("print('swallowed')", consequence))
    process = fake_gapless("check", "-q", "--steps", "1", "train.py")
    assert process.returncode == 0
    assert "Traceback" not in process.stderr
    assert "Only 3 training steps ran" in process.stdout


def test_training_in_a_thread(write, fake_gapless):
    write(
        "train.py",
        "import gpu, threading\ndef work():\n    while True:\n        gpu.wait()\n        gpu.step()\n"
        "t = threading.Thread(target=work)\nt.start()\nt.join()\nprint('joined')\n",
    )
    process = fake_gapless("check", "-q", "--steps", "1", "train.py")
    assert "joined" in process.stdout
    assert process.stderr == ""
    assert process.returncode == 0
    assert "Only 3 training steps ran" in process.stdout


def test_threads_that_wait_for_a_stopped_script(write, fake_gapless):
    write(
        "train.py",
        "import gpu, threading, atexit\natexit.register(print, 'at exit')\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "while True:\n    gpu.step()\n",
    )
    process = fake_gapless("check", "-q", "--steps", "1", "train.py")
    assert process.returncode == 0
    assert "exiting although 1 of the script's threads did not end" in process.stderr
    assert process.stdout.endswith("at exit\n")


def test_failing_after_some_steps_still_reports(write, fake_gapless):
    write("train.py", LOOP.format(n=5, after="assert i < 4, 'lost'"))
    process = fake_gapless("check", "-q", "train.py")
    assert process.returncode == 1
    assert "AssertionError: lost" in process.stderr
    assert_a_sync_in_each_of(3, process.stdout)
    assert "The script failed (AssertionError: lost)" in " ".join(process.stdout.split())


def test_what_cannot_be_emulated_is_one_line(write, fake_gapless):
    write("train.py", "import gpu\ngpu.wait()\ngpu.impossible()\n")
    process = fake_gapless("check", "-q", "train.py")
    assert process.returncode == 3
    assert "Traceback" not in process.stderr
    text = " ".join(process.stdout.split())
    assert "train.py:3: a Triton kernel needs a GPU: run it on one" in text
    assert text.startswith("train.py was stopped before its first step: train.py:3: a Triton kernel needs")
    assert "Why: 1 sync until then." in text


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_the_script_and_not_the_report(number, status, write, tmp_path):
    write(
        "train.py", LOOP.format(n=4, after="pass") + "import time\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    process = start(str(HERE / "fake_gapless.py"), "check", "-q", "train.py", cwd=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if line == "up\n":
            break
    process.send_signal(number)
    result = finish(process)
    assert result.returncode == status
    assert_a_sync_in_each_of(2, result.stdout)
    assert "interrupted" in result.stdout


STUCK = (
    LOOP.format(n=4, after="pass")
    + """
import ctypes
mutex = ctypes.create_string_buffer(64)  # all zero is an unlocked one
lock = ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
print('up', flush=True)
lock(mutex)
"""
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a mutex of glibc's")
def test_a_rank_that_waits_for_another_one_can_be_ended(write, tmp_path):
    write("train.py", STUCK)
    words = (str(HERE / "fake_gapless.py"), "check", "-q", "train.py")
    process = start(*words, cwd=tmp_path, RANK="0", WORLD_SIZE="2")
    assert process.stdout is not None
    for line in process.stdout:
        if line == "up\n":
            break
    process.send_signal(signal.SIGTERM)
    result = finish(process)
    assert result.returncode == 143
    assert_a_sync_in_each_of(2, result.stdout)


HARD_EXITS = {
    "at the end": "os._exit(6)\n",
    "whatever is caught": "try:\n    os._exit(6)\nexcept BaseException:\n    print('on')\n",
    "in a thread": "threading.Thread(target=os._exit, args=(6,)).start()\nthreading.Event().wait()\n",
    "after a child did so": "pid = os.fork()\nif not pid:\n    os._exit(9)\n"
    "assert os.waitpid(pid, 0)[1] == 9 << 8\nos._exit(6)\n",
    "with a handler for the end": "atexit.register(print, 'on')\nos._exit(6)\n",
}


@pytest.mark.parametrize("leave", HARD_EXITS.values(), ids=HARD_EXITS)
def test_hard_exit_is_reported_once_and_saved(leave, write, fake_gapless, tmp_path):
    write("train.py", LOOP.format(n=4, after="pass") + "import atexit, os, threading\n" + leave)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = fake_gapless("check", "-q", "-o", "run.gapless.json", "train.py", TMPDIR=str(temporary))
    assert process.returncode == 6
    assert_a_sync_in_each_of(2, process.stdout)
    assert json.loads((tmp_path / "run.gapless.json").read_bytes())["session"]["ending"]["status"] == 6
    assert process.stdout.count("1 sync in every step") == 1
    assert "on" not in process.stdout.splitlines()
    assert list(temporary.iterdir()) == []


def test_saves_where_it_was_started(write, fake_gapless, tmp_path):
    write("train.py", "import os\nos.mkdir('elsewhere')\nos.chdir('elsewhere')\n")
    process = fake_gapless("check", "-q", "-o", "run.gapless.json", "train.py")
    assert process.returncode == 0
    assert (tmp_path / "run.gapless.json").exists()
    assert list(Path(tmp_path, "elsewhere").iterdir()) == []


def test_the_devices_own_frames_are_left_out_of_tracebacks(write, fake_gapless):
    write(
        "train.py",
        "from gapless.capture.stopping import Stopper, Watcher\n"
        "class Failing(Watcher):\n    def enough(self, mark):\n        raise ValueError('inside')\n"
        "Stopper(Failing())(None)\n",
    )
    result = fake_gapless("check", "-q", "train.py")
    assert "ValueError: inside" in result.stderr
    assert "in enough" in result.stderr
    assert str(Path("src", "gapless")) not in result.stderr
    assert "stopping.py" not in result.stderr
