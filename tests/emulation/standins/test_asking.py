"""For whom there are stand-ins: the script that imports or asks for a package, and not who only looks."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gapless.emulation import standins
from gapless.emulation.standins import finder, guards, wording
from gapless.emulation.standins.package_requests import Requester, Requests

LIBRARY = """
    import importlib.metadata
    import importlib.util
    from functools import cache

    try:
        import flash_attn
        GUARDED = True
    except ImportError:
        GUARDED = False

    @cache
    def available():
        return importlib.util.find_spec("flash_attn") is not None

    def version():
        try:
            return importlib.metadata.version("flash-attn")
        except importlib.metadata.PackageNotFoundError:
            return None

    def attend():
        from flash_attn import flash_attn_func
        return flash_attn_func.__name__

    def answers():
        return [GUARDED, available(), version() is not None]
"""
BEGIN = """
    import json
    import sys
    import gapless

    sys.path.insert(0, {folder!r})
    with gapless.emulate({standins}):
        import library
        print(json.dumps([library.answers(), {then}]))
"""


def run(folder: Path, then: str = "None", *, standins: str = "", more: str = "", words: Any = ()) -> Any:
    """What the library answers in a script that goes on with the expression `then`, and what that is."""
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "library.py").write_text(textwrap.dedent(LIBRARY))
    script = folder / "train.py"
    script.write_text(
        textwrap.dedent(BEGIN).format(standins=standins, then=then, folder=str(folder / "site-packages"))
        + textwrap.dedent(more)
    )
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


NO, YES = [False] * 3, [True] * 3


def test_a_library_that_looks_is_told_that_it_is_not_installed(tmp_path: Path) -> None:
    assert run(tmp_path)[0] == NO


@pytest.mark.parametrize(
    "more",
    [
        "def attend():\n    from flash_attn import flash_attn_func\n",
        'OPTIONS = {"attn_implementation": "flash_attention_2"}\n',
        "import helper\n",
    ],
    ids=["import", "setting", "a module of its own"],
)
def test_a_script_that_asks_for_it_has_it(more: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import flash_attn\n")
    assert run(tmp_path, more=f"if False:\n{textwrap.indent(more, '    ')}")[0] == YES


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('"""Runs without flash_attention_2."""  # flash_attn\n', ()),
        ('NAMES = dict(choices=["sdpa", "flash_attention_2"])\n', ()),
        ("", ("--attn", "sdpa")),
    ],
    ids=["documentation", "choices", "arguments"],
)
def test_words_that_ask_for_nothing(more: str, words: Any, tmp_path: Path) -> None:
    assert run(tmp_path, more=more, words=words)[0] == NO


def test_the_running_file_is_read_however_many_modules_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(wording._MAX_FILES + 1):
        module = ModuleType(f"loaded_{number}")
        module.__file__ = str(tmp_path / f"{module.__name__}.py")
        Path(module.__file__).touch()
        monkeypatch.setitem(sys.modules, module.__name__, module)
    script = tmp_path / "train.py"
    script.write_text('import sys\nattention, frame = "flash_attention_2", sys._getframe()\n')
    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert wording.requests_package(finder.package_of("flash_attn"), names["frame"])


def test_arguments_and_files_of_settings_ask_too(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model:\n  attn_implementation: flash_attention_2\n")
    assert run(tmp_path, words=("--config=run.yaml",))[0] == YES


def test_everyone_and_nobody(tmp_path: Path) -> None:
    assert run(tmp_path, standins="standins=True")[0] == YES


def test_a_library_that_cannot_go_on_without_has_it_from_then_on(tmp_path: Path) -> None:
    """What it has answered before and kept is asked again."""
    before, (name, after) = run(tmp_path, "[library.attend(), library.answers()]")
    assert (before, name) == (NO, "flash_attn_func")
    assert after == [False, True, True]


CODE = """
def plain(frame):
    return frame()


def caught(frame):
    try:
        return frame()
    except (ValueError, ImportError):
        return None


def later(frame):
    try:
        pass
    except ImportError:
        return frame()
    return frame()


def everything(frame):
    try:
        return frame()
    except Exception:
        return None


def suppressed(frame):
    import contextlib
    with contextlib.suppress(ImportError):
        return frame()


def inner(frame):
    try:
        def run():
            return frame()
    except ImportError:
        pass
    return run()


def nested(frame):
    return caught(lambda: plain(frame))


def outer(frame):
    return everything(lambda: plain(frame))


@(lambda function: function)
def decorated(frame):
    match 3:
        case 3:
            try:
                return frame()
            except ModuleNotFoundError:
                pass
"""


def test_a_failure_for_want_of_a_package_names_who_looked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests()
    requests.add_refusal("flash-attn", Requester(sys._getframe(), "library", True, False))
    monkeypatch.setattr(finder, "requests", requests)
    (note,) = standins._refused_notes("ImportError: the package flash_attn seems to be not installed")
    assert note.startswith("library looked for flash-attn, which is not installed here: `--standins`")
    assert list(standins._refused_notes("ValueError: three heads")) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", False),
        ("caught", True),
        ("later", False),
        ("everything", True),
        ("suppressed", True),
        ("inner", False),
        ("nested", True),
        ("outer", False),
        ("decorated", True),
    ],
)
def test_whether_code_goes_on_without(name: str, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(CODE)
    values: dict[str, Any] = {}
    exec(compile(CODE, str(path), "exec"), values)
    assert values[name](lambda: guards.handles_import_error(sys._getframe(1))) is expected
