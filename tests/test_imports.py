"""What importing Gapless costs: nothing. Each test asks a fresh interpreter."""

from __future__ import annotations

import pytest

HEAVY = ("torch", "numpy", "rich", "click", "msgspec")
FREE_OF_TORCH = (
    "model",
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


def test_importing_the_package_loads_nothing(python):
    seen = python("-c", f"import gapless, sys; print([name for name in {HEAVY} if name in sys.modules])")
    assert seen.stdout == "[]\n", seen.stderr


def test_public_names_are_there_and_others_are_not(python):
    code = (
        "import gapless\n"
        "print(gapless.Session.__name__, gapless.load.__name__, gapless.report.__name__)\n"
        "print(callable(gapless.emulate), set(gapless.__all__) <= set(dir(gapless)))\n"
        "import sys; print('torch' in sys.modules)\n"
        "try:\n    gapless.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    seen = python("-W", "error", "-c", code)
    assert seen.stdout == (
        "Session load report\nTrue True\nFalse\nmodule 'gapless' has no attribute 'nothing'\n"
    ), seen.stderr


@pytest.mark.parametrize("room", FREE_OF_TORCH)
def test_rooms_work_without_torch(room, python):
    code = BLOCKED + (
        f"room = importlib.import_module('gapless.{room}')\n"
        "for found in pkgutil.walk_packages(getattr(room, '__path__', ()), room.__name__ + '.'):\n"
        "    if not found.name.endswith('._child'):  # runs in the script's children only, where torch is\n"
        "        importlib.import_module(found.name)\n"
        "print('fine')\n"
    )
    seen = python("-W", "error", "-c", code)
    assert seen.stdout == "fine\n", seen.stderr


def test_check_without_torch_says_how_to_get_it(python, write):
    write("train.py", "print('ran')\n")
    code = BLOCKED + (
        "import importlib.util\nfrom gapless.commands import main\nsys.exit(main(['check', 'train.py']))\n"
    )
    seen = python("-c", code)
    assert (seen.returncode, seen.stdout) == (2, "")
    assert seen.stderr == "gapless: gapless check runs your script and so needs PyTorch: pip install torch\n"
