"""Load targets named on the command line, such as ``losses.py:fixed`` or ``package.module:Loss(10)``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import torch

from gapless.errors import UsageError
from gapless.prove.failure import failure_of, needs_gpu, one_line
from gapless.prove.naming import TARGET_PATTERN


class Loader:
    """Loads targets; modules beside a target are found as if each file ran by itself."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._files: dict[str, ModuleType] = {}
        self._folder = ""

    def callable(self, name: str) -> Callable[..., Any]:
        """Return the callable that `name` names; a class is called without arguments first.

        Raises:
            UsageError: there is none.
            UserCodeFailed: the user's code raised while it was loaded.
        """
        value = self.value(name)
        if isinstance(value, type):
            value = self._make_instance(name, value)
        if not callable(value):
            raise UsageError(f"{name} is of type {type(value).__name__} and cannot be called")
        return value  # type: ignore[no-any-return]  # callable

    def value(self, name: str) -> Any:
        """Return the attribute or the value of the expression that `name` names."""
        parts = TARGET_PATTERN.fullmatch(name)
        if parts is None:
            raise UsageError(
                f"{name} does not name a callable: write losses.py:function or package.module:function"
            )
        module = self._module(parts["where"])
        expression = parts["what"]
        torch.manual_seed(self.seed)  # both sides make their parameters from the same numbers
        if re.fullmatch(r"\w+(\.\w+)*", expression):
            return self._attribute(module, name, expression)
        try:
            return eval(compile(expression, f"<{name}>", "eval"), vars(module))
        except SyntaxError as error:
            raise UsageError(f"{name}: {expression} is not an expression ({error.msg})") from None
        except NameError as error:
            raise UsageError(f"{name}: {error}{_suggestion(str(error.name or ''), module)}") from None
        except Exception as error:
            self._fail(name, error)

    def _make_instance(self, name: str, cls: type) -> Any:
        try:
            return cls()
        except TypeError as error:
            raise UsageError(
                f"{name} is a class: give its arguments, '{name}(…)' ({one_line(error)})"
            ) from None
        except Exception as error:
            self._fail(name, error)

    @staticmethod
    def _attribute(module: ModuleType, name: str, path: str) -> Any:
        value: Any = module
        for part in path.split("."):
            try:
                value = getattr(value, part)
            except AttributeError:
                raise UsageError(f"{name}: there is no {part!r}{_suggestion(part, value)}") from None
        return value

    def _module(self, where: str) -> ModuleType:
        if where.endswith(".py"):
            return self._file(where)
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{where}.".startswith(f"{error.name}."):
                raise UsageError(f"there is no module {where}") from None
            self._fail(where, error)
        except Exception as error:
            self._fail(where, error)
        finally:
            sys.path.remove(os.getcwd())

    def _file(self, where: str) -> ModuleType:
        path = os.path.realpath(where)
        if path in self._files:
            return self._files[path]
        if not os.path.isfile(path):
            raise UsageError(f"there is no file {where}")
        folder, file = os.path.split(path)
        self._enter_folder(folder)
        name = file.removesuffix(".py")
        # A loaded module of that name is a different one: a library's, or another folder's.
        name = name if name not in sys.modules else f"{name}__{len(self._files)}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            self._fail(where, error)
        self._files[path] = module
        return module

    def _enter_folder(self, folder: str) -> None:
        """Put `folder` first on the path, and unload modules imported from beside another target."""
        if folder == self._folder:
            return
        if self._folder in sys.path:
            sys.path.remove(self._folder)
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None) or ""
                beside = os.path.dirname(file) == self._folder and "site-packages" not in file
                if beside and module not in self._files.values():
                    del sys.modules[name]
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        self._folder = folder

    @staticmethod
    def _fail(name: str, error: BaseException) -> NoReturn:
        if needs_gpu(error) and not torch.cuda.is_available():
            raise error
        raise failure_of(name, error) from None


def _suggestion(name: str, module: Any) -> str:
    close = difflib.get_close_matches(
        name, [attribute for attribute in dir(module) if not attribute.startswith("__")], n=1
    )
    return f" (did you mean {close[0]}?)" if close else ""
