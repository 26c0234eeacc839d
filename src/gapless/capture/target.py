"""`Target`: what to run, located and compiled as Python itself would."""

from __future__ import annotations

import difflib
import importlib.util
import io
import os
import pkgutil
import re
import shlex
import sys
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from gapless.errors import UsageError


@dataclass(frozen=True)
class Target:
    """A script, a folder or archive with a ``__main__.py``, or a module's name (`module`), with arguments."""

    name: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    @classmethod
    def of(cls, module: str | None, words: tuple[str, ...]) -> Target:
        """Return the target of a command line: a `module` and its arguments, or a script's words.

        Raises:
            UsageError: there is no such script.
        """
        target = cls(words[0], words[1:]) if module is None else cls(module, words, module=True)
        target.check()
        return target

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the user's command."""
        return ("-m", self.name, *self.arguments) if self.module else (self.name, *self.arguments)

    @property
    def folder(self) -> str:
        """The folder that the script stands in, without links; of a module the current one."""
        path = os.path.realpath(self.name)
        return os.curdir if self.module else path if os.path.isdir(path) else os.path.dirname(path)

    def check(self) -> None:
        """Refuse early what cannot be run.

        Raises:
            UsageError: there is no such script.
        """
        if self.module:
            return
        if os.path.isfile(self.name):
            if self.name.endswith(".ipynb"):
                raise UsageError(f"{self.name} is a notebook: {_NOTEBOOK}")
            return
        if os.path.isdir(self.name):
            if os.path.isfile(os.path.join(self.name, "__main__.py")):
                return
            raise UsageError(f"{self.name} is a folder without a __main__.py: name a script in it")
        raise UsageError(f"no such file: {self.name}{_advice(self.name, self.arguments)}")

    def find_misplaced_options(self, options: Collection[str]) -> list[str]:
        """Return the arguments that are `options` of Gapless and never named in the script's text."""
        meant = [word.split("=")[0] for word in self.arguments]
        meant = [word for word in meant if word.startswith("--") and word in options]
        if self.module or not meant:
            return []
        named = set(_WORD.findall(Path(self.name).read_text(encoding="utf-8", errors="replace")))
        return [word for word in meant if not named & {word[2:], word[2:].replace("-", "_")}]


_WORD = re.compile(r"\w[\w-]*")
_NOTEBOOK = (
    "run its cells under `%load_ext gapless` and `%%gapless`, or make a script of it "
    "(`jupyter nbconvert --to script`)"
)
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")


def _advice(name: str, arguments: tuple[str, ...]) -> str:
    if re.fullmatch(r"python[\d.]*(\.exe)?", os.path.basename(name)):
        return f" (without it: {shlex.join(('gapless', 'check', *arguments))})"
    if name in _LAUNCHERS:
        return f" (it starts Gapless, not the other way around: {_launcher_command(name, arguments)})"
    folder, file = os.path.split(name)
    try:
        names = [entry for entry in os.listdir(folder or ".") if entry.endswith(".py")]
    except OSError:
        return f" (there is no folder {folder})"
    close = difflib.get_close_matches(file.removesuffix(".py"), [file_name[:-3] for file_name in names], n=1)
    if close:
        return f" (did you mean {os.path.join(folder, close[0])}.py?)"
    if os.path.isfile(f"{name.replace('.', os.sep)}.py"):
        return f" (run a module with -m {name})"
    return ""


def _launcher_command(name: str, arguments: tuple[str, ...]) -> str:
    """Return the launcher's command line with Gapless before the script."""
    at = next((n for n, word in enumerate(arguments) if word.endswith(".py") or word == "-m"), len(arguments))
    module = "--module" if name == "deepspeed" else "-m"
    return shlex.join((name, *arguments[:at], module, "gapless", "check", *arguments[at:]))


def prepare(target: Target) -> tuple[ModuleType, CodeType]:
    """Return the new ``__main__`` and its code; sets `sys.argv`, `sys.path` and `sys.modules` as Python
    would.

    They stay set: from here on the process is the script's.

    Raises:
        UsageError: a module does not exist or cannot be run.
        SyntaxError: the script's own.
    """
    if target.module:
        return _prepare_module(target)
    archive = os.path.isdir(target.name) or zipfile.is_zipfile(target.name)
    if archive:
        return _prepare_archive(target)
    path = os.path.abspath(target.name)
    sys.argv = [target.name, *target.arguments]
    _replace_first_path(os.path.dirname(os.path.realpath(path)))
    main = _new_main(path, SourceFileLoader("__main__", path), None)
    return main, _compile(path)


def _compile(path: str) -> CodeType:
    with io.open_code(path) as stream:
        compiled: CodeType | None = pkgutil.read_code(stream)
    if compiled is not None:  # a .pyc
        return compiled
    # Gapless's own __future__ imports are not the script's.
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)


def _prepare_archive(target: Target) -> tuple[ModuleType, CodeType]:
    path = os.path.abspath(target.name)
    sys.argv = [target.name, *target.arguments]
    _replace_first_path(path)
    importer = pkgutil.get_importer(path)
    spec = importer.find_spec("__main__") if importer is not None else None
    if spec is None:
        raise UsageError(f"{target.name} has no __main__.py to run")
    return _main_of(spec, target.name)


def _prepare_module(target: Target) -> tuple[ModuleType, CodeType]:
    # As in Python, packages above the module are imported while argv[0] is still "-m".
    sys.argv = ["-m", *target.arguments]
    _replace_first_path(os.getcwd())
    name = target.name
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    if spec is None:
        why = f"; {target.name} is a package without __main__" if name != target.name else ""
        raise UsageError(f"no module named {name}{why}")
    main, code = _main_of(spec, target.name)
    sys.argv[0] = spec.origin or name
    return main, code


def _main_of(spec: ModuleSpec, name: str) -> tuple[ModuleType, CodeType]:
    get_code = getattr(spec.loader, "get_code", None)
    code: CodeType | None = get_code(spec.name) if get_code is not None else None
    if code is None:
        raise UsageError(f"{name} has no Python code to run")
    return _new_main(spec.origin, spec.loader, spec), code


def _new_main(file: str | None, loader: object, spec: ModuleSpec | None) -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(
        __file__=file,
        __loader__=loader,
        __spec__=spec,
        __package__=spec.parent if spec is not None else None,
        __cached__=spec.cached if spec is not None else None,
        __builtins__=__builtins__,
    )
    sys.modules["__main__"] = main
    return main


def _replace_first_path(folder: str) -> None:
    """Put `folder` first on `sys.path`, where Python put Gapless's folder."""
    if getattr(sys.flags, "safe_path", False):
        return  # with -P Python adds no folder, neither for Gapless nor for the script
    sys.path[:1] = [folder]
