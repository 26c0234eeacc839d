"""From a kernel's source to its TTIR, with Triton's own front end, and the object that Triton launches."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Launch = Callable[["Any", tuple[int, int, int], tuple[Any, ...]], None]


def compiler(launch: Launch, compiled: Any) -> Callable[..., Any]:
    """What takes the place of ``triton.compiler.compile``; `launch` is called with what it gives.

    `compiled` is Triton's class of compiled kernels: its other methods stay what they are.
    """
    kind = _kind_of(launch, compiled)

    def compile(src: Any, target: Any = None, options: Any = None, **_: Any) -> Any:
        return kind(src, *ttir_of(src, target, options or {}))

    return compile


def ttir_of(src: Any, target: Any, options: dict[str, Any]) -> tuple[str, Any]:
    """The TTIR of an ``ASTSource`` with everything inlined, and the options it was made with.

    What Gluon makes has no TTIR: its first form is given.
    """
    from triton.compiler.compiler import make_backend
    from triton.runtime.driver import driver

    target = driver.active.get_current_target() if target is None else target
    backend = make_backend(target)
    options = backend.parse_options({**options, **src.parse_options()})
    cache, name = _cache(src, target, options)
    text = _cached(cache, name)
    if text is None:
        text = _made(src, target, backend, options)
        if cache is not None:
            cache.put(text, name, binary=False)
    return text, options


def _made(src: Any, target: Any, backend: Any, options: Any) -> str:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    known = {
        "target": target,
        "options": options,
        "codegen_fns": backend.get_codegen_implementation(options),
        "module_map": backend.get_module_map() if hasattr(backend, "get_module_map") else {},
        "context": context,
    }
    wanted = inspect.signature(src.make_ir).parameters
    module = src.make_ir(*(known[name] for name in wanted))
    stages: dict[str, Any] = {}
    if len(inspect.signature(backend.add_stages).parameters) > 2:
        backend.add_stages(stages, options, src.language)
    else:
        backend.add_stages(stages, options)
    if "ttir" in stages:
        made = stages["ttir"](module, {"target": target, **options.__dict__})
        module = module if made is None else made
    return str(module.str_nodebug() if hasattr(module, "str_nodebug") else module)


def _cache(src: Any, target: Any, options: Any) -> tuple[Any, str]:
    """Triton's own cache on disk, at a place of ours, and the file's name in it."""
    import triton
    from triton.runtime.cache import get_cache_manager

    try:
        key = f"gapless-ttir-{triton.__version__}-{src.hash()}-{target}-{options.hash()}"
        return get_cache_manager(hashlib.sha256(key.encode()).hexdigest()), "kernel.ttir"
    except (OSError, AttributeError, RuntimeError):  # nowhere to write: it is made each time
        return None, ""


def _cached(cache: Any, name: str) -> str | None:
    if cache is None:
        return None
    path = cache.get_file(name)
    if path is None:
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def _kind_of(launch: Launch, compiled: Any) -> Any:
    """A class of compiled kernels whose launch is `launch`."""

    class EvaluatedKernel(compiled):  # type: ignore[misc]
        """What Triton takes for a compiled kernel."""

        def __init__(self, src: Any, ttir: str, options: Any) -> None:
            self.src = src
            self.name = str(getattr(src.fn, "__name__", src.name))
            self.asm = {"ttir": ttir}
            self.hash = hashlib.sha256(ttir.encode()).hexdigest()
            # What only the machine code has is taken as of a small kernel.
            self.metadata = SimpleNamespace(
                **{"shared": 1024, "name": self.name, "hash": self.hash, "tmem_size": 0, **vars(options)}
            )
            self.packed_metadata = ()
            self.kernel = b""
            self.module = self.function = None
            self.n_regs, self.n_spills, self.n_max_threads = 32, 0, 1024

        def __del__(self) -> None:
            """Nothing to unload."""

        def _init_handles(self) -> None:
            """Nothing to load."""

        def run(
            self, x: int, y: int, z: int, stream: Any, function: Any, packed: Any, metadata: Any,
            enter: Any, leave: Any, *arguments: Any,
        ) -> None:  # fmt: skip
            if enter is not None:
                enter(metadata)
            launch(self, (int(x), int(y), int(z)), arguments)
            if leave is not None:
                leave(metadata)

    return EvaluatedKernel


def leaves(src: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments that the kernel has at run time: without constants, with tuples taken apart.

    A tensor descriptor becomes itself, its sizes and its strides.
    """
    signature = dict(src.signature)
    constants = {_name(key, list(signature)) for key in getattr(src, "constants", {}) or {}}
    given = list(signature.items())
    if len(arguments) != len(given):
        given = [(name, kind) for name, kind in given if kind != "constexpr"]
    found: list[Any] = []
    for (name, kind), value in zip(given, arguments, strict=True):
        if name not in constants:
            _flatten(kind, value, found)
    return found


def _name(key: Any, names: list[str]) -> Any:
    """The argument that a constant stands for: named, by position, or by a path of one."""
    if isinstance(key, tuple):
        key = key[0] if len(key) == 1 else None
    return names[key] if isinstance(key, int) and key < len(names) else key


def _flatten(kind: Any, value: Any, found: list[Any]) -> None:
    if isinstance(kind, (tuple, list)):
        for inner, one in zip(kind, value, strict=True):
            _flatten(inner, one, found)
    elif kind != "constexpr":
        found.append(value)
