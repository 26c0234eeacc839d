"""Compile a kernel's source to TTIR with Triton's own front end, and build the object Triton launches."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Launch = Callable[["Any", tuple[int, int, int], tuple[Any, ...]], None]


def evaluating_compiler(launch: Launch, compiled: Any) -> Callable[..., Any]:
    """Return a replacement for ``triton.compiler.compile`` whose kernels are run by `launch`.

    `compiled` is Triton's class of compiled kernels; its other methods are inherited unchanged.
    """
    kind = _evaluated_kernel_class(launch, compiled)

    def compile(src: Any, target: Any = None, options: Any = None, **_: Any) -> Any:
        return kind(src, *ttir_of(src, target, options or {}))

    return compile


def ttir_of(src: Any, target: Any, options: dict[str, Any]) -> tuple[str, Any]:
    """Return the TTIR of an ``ASTSource`` with everything inlined, and the options it was compiled with.

    A Gluon kernel has no TTIR: its first intermediate form is returned.
    """
    from triton.compiler.compiler import make_backend
    from triton.runtime.driver import driver

    target = driver.active.get_current_target() if target is None else target
    backend = make_backend(target)
    options = backend.parse_options({**options, **src.parse_options()})
    cache, name = _cache(src, target, options)
    text = _read_cached(cache, name)
    if text is None:
        text = _build_ttir(src, target, backend, options)
        if cache is not None:
            cache.put(text, name, binary=False)
    return text, options


def _build_ttir(src: Any, target: Any, backend: Any, options: Any) -> str:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    available = {
        "target": target,
        "options": options,
        "codegen_fns": backend.get_codegen_implementation(options),
        "module_map": backend.get_module_map() if hasattr(backend, "get_module_map") else {},
        "context": context,
    }
    wanted = inspect.signature(src.make_ir).parameters
    module = src.make_ir(*(available[name] for name in wanted))
    stages: dict[str, Any] = {}
    if len(inspect.signature(backend.add_stages).parameters) > 2:
        backend.add_stages(stages, options, src.language)
    else:
        backend.add_stages(stages, options)
    if "ttir" in stages:
        changed = stages["ttir"](module, {"target": target, **options.__dict__})
        module = module if changed is None else changed
    return str(module.str_nodebug() if hasattr(module, "str_nodebug") else module)


def _cache(src: Any, target: Any, options: Any) -> tuple[Any, str]:
    """Triton's own disk cache under a key of ours (None if not writable), and the file's name in it."""
    import triton
    from triton.runtime.cache import get_cache_manager

    try:
        key = f"gapless-ttir-{triton.__version__}-{src.hash()}-{target}-{options.hash()}"
        return get_cache_manager(hashlib.sha256(key.encode()).hexdigest()), "kernel.ttir"
    except (OSError, AttributeError, RuntimeError):  # nowhere to write: compile every time
        return None, ""


def _read_cached(cache: Any, name: str) -> str | None:
    if cache is None:
        return None
    path = cache.get_file(name)
    if path is None:
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def _evaluated_kernel_class(launch: Launch, compiled: Any) -> Any:
    """Return a subclass of `compiled` whose launches call `launch`."""

    class EvaluatedKernel(compiled):  # type: ignore[misc]
        """Stands in for Triton's compiled kernel."""

        def __init__(self, src: Any, ttir: str, options: Any) -> None:
            self.src = src
            self.name = str(getattr(src.fn, "__name__", src.name))
            self.asm = {"ttir": ttir}
            self.hash = hashlib.sha256(ttir.encode()).hexdigest()
            # Values that only machine code would tell are those of a small kernel.
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


def runtime_arguments(src: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """Return the kernel's run-time arguments in a flat list: no constants, tuples unpacked.

    A tensor descriptor stays one argument.
    """
    signature = dict(src.signature)
    constants = {_constant_name(key, list(signature)) for key in getattr(src, "constants", {}) or {}}
    parameters = list(signature.items())
    if len(arguments) != len(parameters):
        parameters = [(name, kind) for name, kind in parameters if kind != "constexpr"]
    flat: list[Any] = []
    for (name, kind), value in zip(parameters, arguments, strict=True):
        if name not in constants:
            _flatten(kind, value, flat)
    return flat


def _constant_name(key: Any, names: list[str]) -> Any:
    """The name of a constant argument, from its key: a name, a position, or a path of length one."""
    if isinstance(key, tuple):
        key = key[0] if len(key) == 1 else None
    return names[key] if isinstance(key, int) and key < len(names) else key


def _flatten(kind: Any, value: Any, flat: list[Any]) -> None:
    if isinstance(kind, (tuple, list)):
        for inner, inner_value in zip(kind, value, strict=True):
            _flatten(inner, inner_value, flat)
    elif kind != "constexpr":
        flat.append(value)
