"""What importing Gapless costs: nothing, as fresh interpreters say; and no two modules import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gapless

HEAVY = ("torch", "numpy", "rich", "click", "msgspec")
FREE_OF_TORCH = (
    "model",
    "files",
    "rules",
    "analyze",
    "render",
    "commands",
    "commands.check",
    "commands.show",
    "commands.trace",
    "commands.compare",
    "trace",
    "replay",
    "errors",
)

BLOCKED = """
import importlib, pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def test_importing_the_package_loads_nothing(plain_python):
    process = plain_python(
        "-c", f"import gapless, sys; print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert process.stdout == "[]\n", process.stderr


def test_public_names_are_there_and_others_are_not(plain_python):
    code = (
        "import gapless\n"
        "print(gapless.Session.__name__, gapless.load.__name__, gapless.report.__name__)\n"
        "print(callable(gapless.emulate), set(gapless.__all__) <= set(dir(gapless)))\n"
        "import sys; print('torch' in sys.modules)\n"
        "try:\n    gapless.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    process = plain_python("-W", "error", "-c", code)
    assert process.stdout == (
        "Session load report\nTrue True\nFalse\nmodule 'gapless' has no attribute 'nothing'\n"
    ), process.stderr


@pytest.mark.parametrize("room", FREE_OF_TORCH)
def test_rooms_work_without_torch(room, plain_python):
    code = BLOCKED + (
        f"room = importlib.import_module('gapless.{room}')\n"
        "for found in pkgutil.walk_packages(getattr(room, '__path__', ()), room.__name__ + '.'):\n"
        "    if not found.name.endswith('._child'):  # runs in the script's children only, where torch is\n"
        "        importlib.import_module(found.name)\n"
        "print('fine')\n"
    )
    process = plain_python("-W", "error", "-c", code)
    assert process.stdout == "fine\n", process.stderr


EVERY_OPTION = """
import click, contextlib, io
from gapless.commands import main
from gapless.commands.check import command
SAMPLES = {"-m": "train", "--assume": "train.py:1=2", "--find": "batch:1..4", "--price": "l4=1"}
SAMPLES["--fail-on"] = "GAP1"
for option in command.params:
    if not isinstance(option, click.Option) or option.name == "help":
        continue
    name = option.opts[0]
    if option.is_flag:
        words = [name]
    elif isinstance(option.type, click.Choice):
        words = [name, option.type.choices[0]]
    elif name == "--standin":
        words = [name, "train.py"]
    else:
        words = [name, SAMPLES.get(name, "1")]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        status = main(["check", *words, "train.py"])
    print(status, errors.getvalue().strip(), "with", *words)
"""


def test_check_without_torch_says_how_to_get_it_whatever_the_option(plain_python, write):
    write("train.py", "print('ran')\n")
    process = plain_python("-c", BLOCKED + EVERY_OPTION)
    lines = process.stdout.splitlines()
    expected = "2 gapless: gapless check runs your script and so needs PyTorch: pip install torch with "
    assert len(lines) > 25, process.stderr
    assert [line for line in lines if not line.startswith(expected)] == []


def test_a_torch_whose_import_fails_is_a_line(write, plain_python):
    write("torch.py", "raise OSError('no libcudart\\nmore')\n")
    write("train.py", "print('ran')\n")
    process = plain_python("-m", "gapless", "check", "--find", "batch:1..4", "train.py")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == (
        "gapless: gapless check runs your script and so needs PyTorch, whose import fails: "
        "OSError: no libcudart\n"
    )


def _called(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def imported(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Which of `modules` a source imports: anywhere, in functions and for types too, or by a literal name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from ([inner] if inner in modules else {node.module} & modules)
        elif isinstance(node, ast.Call) and _called(node.func) == "import_module":
            names = {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
            yield from names & modules


def circles(folder: Path) -> list[set[str]]:
    """The modules under `folder` that import each other, directly or through others."""
    files = {}
    for file in folder.rglob("*.py"):
        parts = file.relative_to(folder).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    modules = set(files)
    graph = {name: set(imported(ast.parse(file.read_text()), modules)) for name, file in files.items()}

    def reached(start: str) -> set[str]:
        visited: set[str] = set()
        ahead = [*graph[start] - {start}]
        while ahead:
            name = ahead.pop()
            if name not in visited:
                visited.add(name)
                ahead += graph[name] - {name}
        return visited

    reach = {name: reached(name) for name in graph}
    rings = {frozenset(neighbour for neighbour in reach[name] if name in reach[neighbour]) for name in graph}
    return sorted((set(circle) for circle in rings if circle), key=sorted)


def test_the_reader_sees_imports_in_functions_for_types_and_by_name(tmp_path):
    sources = {
        "a/__init__.py": "from a import first\n",
        "a/first.py": "def f():\n    from a.second import name\n",
        "a/second.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a.third\n",
        "a/third.py": "import importlib\nimportlib.import_module('a.first')\n",
        "a/fourth.py": "from a import first, third\n",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    assert circles(tmp_path) == [{"a.first", "a.second", "a.third"}]


def test_no_modules_import_each_other():
    import_circles = circles(Path(gapless.__file__).parent.parent)
    assert not import_circles, "these import each other: move what both need down: " + "; ".join(
        map(str, import_circles)
    )
