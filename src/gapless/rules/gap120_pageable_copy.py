"""GAP120."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gapless.model import Site, WaitRule
from gapless.rules._code import Code, add_option, called_name, is_device, is_module, keyword, sets_blocking
from gapless.rules._places import (
    advise_for_library,
    bare_operator,
    deciding_frame,
    is_below,
    is_in_dataset,
    parse_user_line,
    parse_waiting_line,
    short_path,
)

_PINNING = "`DataLoader(..., pin_memory=True)` does that for batches"
_NO_BATCH = "`gapless.ops.to_device` pins what does not come from a DataLoader; or create it on the GPU"
_FACTORIES = (
    "arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros",
)  # fmt: skip
_CHANGES = (
    "bfloat16", "bool", "double", "float", "half", "int", "long", "repeat", "reshape", "requires_grad_", "t",
    "unsqueeze", "view",
)  # fmt: skip
"""Methods between a factory and its copy that have the same effect if the tensor is created on the GPU."""
_HOST_ONLY_OPTIONS = ("generator", "out", "pin_memory", None)
"""Options with which a factory cannot create its tensor elsewhere; None stands for ``**options``."""
_COPIES = {"_to_copy", "copy_", "_foreach_copy_"}
_OF_A_CLASS = ", if your own class has a `pin_memory` method that it can call"
_WHOLE_BATCHES = (
    "leave items on the CPU: `DataLoader(..., pin_memory=True)` pins the batch it builds from them, and "
    "the loop copies the whole batch with `non_blocking=True`"
)
_PASSED_PARAMETER = re.compile(r"\bnon_blocking=(?:self\.)?_?non_blocking\b")
_IN_THE_MODEL = (
    "create the tensor on the GPU (`device=x.device` of an input `x`), or once as a buffer of the module; "
    "copy data from the CPU together with the batch, from pinned memory"
)


_STRIDED = (
    "this part of a pinned tensor is copied through pageable memory first, because its elements are not "
    "contiguous: copy the whole tensor with `non_blocking=True` and take the part on the GPU, or copy the "
    "part into its own pinned tensor"
)
_UNMEASURED = (
    ". A copy of 64 to 128 KiB with `non_blocking=True` does not wait on an A100 or an H100; this GPU was "
    "not measured"
)


class PageableCopy(WaitRule):
    """A copy to the GPU from pageable memory: the CPU waits while the data is staged.

    ## What waits
    The GPU can read CPU memory directly only if it is pinned (page-locked). From pageable memory the driver
    first copies the data into its own pinned buffers, and the CPU waits meanwhile. Without
    `non_blocking=True`, PyTorch also waits for everything queued on the stream; with it, the staging remains:
    the flag makes a copy asynchronous only from pinned memory, or if it is small (64 KB on every GPU, 128 KiB
    on an A100 and an H100). A non-contiguous part of a pinned tensor (`pinned[:, :4]`) also goes through
    pageable memory.

    ## Why it costs
    The batch is copied at the beginning of the step. While the CPU stages it, nothing new is launched, and
    a copy that could have overlapped with the previous step's kernels does not.

    ## Example
    ```python
    for inputs, labels in DataLoader(dataset, batch_size=4):
        inputs = inputs.to(device, non_blocking=True)
    ```

    ## Use instead
    ```python
    for inputs, labels in DataLoader(dataset, batch_size=4, pin_memory=True):
        inputs = inputs.to(device, non_blocking=True)
    ```
    Both are needed: `pin_memory=True` in the DataLoader, whose own thread does the pinning, and
    `non_blocking=True` at the copy. A buffer of your own can be allocated pinned once and filled in each
    step, but only after an event recorded after its last copy is complete. Calling `.pin_memory()` in the
    step only moves the copy to another line.

    ## When it is fine
    In set-up: data or a model that is copied once.
    """

    code = "GAP120"
    name = "pageable-copy"
    advice = (
        "copy from pinned memory with `non_blocking=True` (`DataLoader(..., pin_memory=True)` pins batches "
        "in its own thread; `gapless.ops.to_device(batch, device)` pins everything else), or create the "
        "tensor on the GPU"
    )
    change = "pin it and copy with `non_blocking=True`"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "h2d" and (
            site.detail in ("pageable", "strided", "unmeasured") or bare_operator(site) in _COPIES
        )

    def remedy(self, site: Site) -> str:
        if site.detail == "strided":
            return _STRIDED
        return self._pinning_advice(site) + (_UNMEASURED if site.detail == "unmeasured" else "")

    def _pinning_advice(self, site: Site) -> str:
        if is_below(site, "accelerate", "send_to_device"):
            return (
                "let the DataLoader pin its batches (`pin_memory=True`), and copy them without waiting: "
                "`Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))`"
            )
        if is_below(site, "lightning", "move_data_to_device"):
            return "let the DataLoader pin its batches (`pin_memory=True`): Lightning does not wait for those"
        if is_in_dataset(site):
            return _WHOLE_BATCHES
        code = parse_waiting_line(site)
        is_batch = site.cause is not None and site.cause.kind == "batch"
        pinning = _PINNING if site.batch is not False or is_batch else _NO_BATCH
        moved = _advise_pinning(code, pinning) if code is not None else ""
        if moved.endswith(pinning) and site.line is not None:
            if site.line.function.endswith("forward"):
                return _IN_THE_MODEL
            if pinning is _PINNING and site.line.function.endswith((".to", ".cuda")):
                return moved + _OF_A_CLASS
        return moved or _advise_library_copy(site) or advise_for_library(site, self.advice)

    def known_change(self, site: Site) -> str:
        if site.detail == "strided":
            return "copy the whole pinned tensor, slice it on the GPU"
        if is_below(site, "accelerate", "send_to_device"):
            return "pin batches, `DataLoaderConfiguration(non_blocking=True)`"
        if is_below(site, "lightning", "move_data_to_device"):
            return "let the DataLoader pin its batches: `pin_memory=True`"
        if is_in_dataset(site):
            return "copy batches to the GPU, not items"
        if _advise_library_copy(site):
            return self.change
        code = parse_waiting_line(site)
        calls = code.calls("to", "cuda") if code is not None else []
        on_gpu = code is not None and len(calls) == 1 and _advise_creation(code, calls[0])
        return "create the tensor on the GPU" if on_gpu else ""


def _advise_pinning(code: Code, pinning: str) -> str:
    calls = [call for call in code.calls("to", "cuda") if isinstance(call.func, ast.Attribute)]
    subjects = [code.subject(call) for call in calls]
    if not calls or not all(subjects):
        return ""
    if len(calls) == 1 and (advice := _advise_creation(code, calls[0])):
        return advice
    if not all(
        isinstance(call.func, ast.Attribute) and _is_existing_tensor(call.func.value) for call in calls
    ):
        return ""
    pinned = " and ".join(f"`{subject}`" for subject in dict.fromkeys(subjects))
    blocking = [call for call in calls if not sets_blocking(call)]
    if not blocking:
        return f"{pinned} must be in pinned memory for `non_blocking=True` to help: {pinning}"
    changes: list[tuple[ast.expr, str]] = [
        (call, add_option(code, call, "non_blocking=True")) for call in blocking
    ]
    changed = changes[0][1] if len(changes) == 1 else code.replace(*changes)
    return f"`{changed}` with {pinned} in pinned memory: {pinning}" if changed else ""


def _advise_library_copy(site: Site) -> str:
    """Return advice where a library passes on the ``non_blocking`` that it received."""
    frame = deciding_frame(site)
    if frame is None or not _PASSED_PARAMETER.search(frame.code):
        return ""
    code = parse_user_line(site)
    call = code.only_call("to", "cuda") if code is not None else None
    if code is not None and call is not None and not sets_blocking(call) and (subject := code.subject(call)):
        changed = add_option(code, call, "non_blocking=True")
        return f"`{changed}` with `{subject}` in pinned memory: {_PINNING}" if changed else ""
    return (
        f"{frame.library} copies with its own `non_blocking` parameter, at {short_path(frame)} "
        f"({frame.function}): set it to True, with batches from pinned memory: {_PINNING}"
    )


def _is_existing_tensor(node: ast.expr) -> bool:
    """Whether `node` is a name or a part of one, not a new tensor."""
    return isinstance(node, (ast.Name, ast.Attribute)) or (
        isinstance(node, ast.Subscript) and _is_existing_tensor(node.value)
    )


def _advise_creation(code: Code, call: ast.Call) -> str:
    """Return advice for ``torch.randn(4).to(device)``: a factory accepts the device itself."""
    source, changed = _split_conversions(
        code, call.func.value if isinstance(call.func, ast.Attribute) else None
    )
    if (
        not isinstance(source, ast.Call)
        or called_name(source) not in _FACTORIES
        or keyword(source, "device") is not None
    ):
        return ""
    if not (isinstance(source.func, ast.Attribute) and is_module(source.func.value, "torch", "th")):
        return ""
    if any(option.arg in _HOST_ONLY_OPTIONS for option in source.keywords):
        return ""
    creation = add_option(code, source, ", ".join(_factory_options(code, call)))
    return f"`{creation}{changed}` is created on the GPU without a copy" if creation else ""


def _split_conversions(code: Code, node: ast.expr | None) -> tuple[ast.expr | None, str]:
    """Split ``torch.ones(4).long().view(2, 2)`` into ``torch.ones(4)`` and ``.long().view(2, 2)``."""
    origin = node
    while (
        isinstance(origin, ast.Call)
        and called_name(origin) in _CHANGES
        and isinstance(origin.func, ast.Attribute)
    ):
        origin = origin.func.value
    if origin is None or node is None or not code.text(node).startswith(code.text(origin)):
        return None, ""
    return origin, code.text(node).removeprefix(code.text(origin))


def _factory_options(code: Code, call: ast.Call) -> Iterator[str]:
    """Yield the arguments of ``.to(...)`` as options of a factory; ``...`` where it may be a tensor."""
    device = keyword(call, "device") or (call.args[0] if call.args else None)
    if device is None:
        yield 'device="cuda"'
    else:
        yield f"device={(code.text(device) if is_device(device) else '') or '...'}"
    further = call.args[1] if called_name(call) == "to" and len(call.args) > 1 else None
    dtype = keyword(call, "dtype") or (further if isinstance(further, (ast.Attribute, ast.Name)) else None)
    if dtype is not None and code.text(dtype):
        yield f"dtype={code.text(dtype)}"
