"""GAP149."""

from __future__ import annotations

from gapless.model import Site, SourceLine, WaitRule
from gapless.rules import match_rule
from gapless.rules._places import advise_for_library, bare_operator, deciding_frame, short_path

_KNOWN = (
    (
        "transformers",
        "transformers/trainer.py",
        "log",
        "`TrainingArguments(logging_steps=N)` sets how often the Trainer reads its loss",
        "`TrainingArguments(logging_steps=N)`",
    ),
    (
        "transformers",
        "transformers/generation/",
        "finished",
        "generation checks after each token whether every sequence has ended; your own loop over a fixed "
        "number of tokens avoids this",
        "",
    ),
    (
        "torch",
        "torch/optim/swa_utils.py",
        "",
        "it reads or copies its update counter: keep a `copy.deepcopy(model)` and update it with "
        "`kept.lerp_(new, 1 - decay)`",
        "",
    ),
    (
        "torch",
        "torch/_higher_order_ops/cond.py",
        "",
        "`torch.cond` reads its condition on the CPU in each call, compiled or not: it avoids a graph "
        "break but still syncs. `torch.where(condition, a, b)` computes both branches without a sync, "
        "which is cheaper unless a branch is long",
        "`torch.where` instead of `torch.cond`, if both branches are short",
    ),
    (
        "torch",
        "torch/_higher_order_ops/while_loop.py",
        "",
        "`while_loop` reads its condition on the CPU each round, compiled or not. A fixed number of rounds "
        "needs no read: `x = torch.where(condition(x), body(x), x)` in each round leaves finished elements "
        "unchanged",
        "a fixed number of rounds instead of `while_loop`",
    ),
    (
        "pyro",
        "pyro/util.py",
        "warn_if",
        "`pyro.enable_validation(False)` turns off the checks of every sample site, and those of the "
        "distributions",
        "`pyro.enable_validation(False)`",
    ),
    (
        "pyro",
        "pyro/infer/util.py",
        "torch_item",
        "`SVI.step` returns the loss as a number; `Trace_ELBO().differentiable_loss(model, guide, ...)` with "
        "a `torch.optim` optimizer keeps it on the GPU",
        "`differentiable_loss` with a `torch.optim` optimizer instead of `SVI.step`",
    ),
)
"""Advice by library, part of the file's path, and a word in the reading line or a function around it: in a
sentence and in a few words."""


class LibraryRead(WaitRule):
    """A library reads a GPU tensor on the CPU, below the line that calls it.

    ## What waits
    The line itself reads nothing, but library code that it calls does: with `.item()`, a condition, or
    printing. The finding names the library's own line.

    ## Why it costs
    Like any read: the CPU waits for all work launched before, and the GPU idles afterwards. It is easy
    to overlook, because nothing in your own code shows it, and it remains after you have removed your
    own reads.

    ## Example
    ```python
    averaged = torch.optim.swa_utils.AveragedModel(model, device=device)
    for step in range(4):
        train_step()
        averaged.update_parameters(model)  # reads its count of updates, which is on the GPU
    ```

    ## Use instead
    ```python
    averaged = copy.deepcopy(model)
    for step in range(4):
        train_step()
        with torch.no_grad():
            for kept, new in zip(averaged.parameters(), model.parameters()):
                kept.lerp_(new, 0.1)
    ```
    If the library has an option that turns the read off, the finding names it. Otherwise call
    it less often, or write the few operations you need on tensors. Reporting it to the library's authors
    helps everyone.

    ## When it is fine
    In set-up, in evaluation, or where the library inherently needs the value (a line search, early
    stopping)."""

    code = "GAP149"
    name = "library-read"
    priority = 60
    advice = "call the library's function less often"
    change = "call the library's function less often"

    def matches(self, site: Site) -> bool:
        by_python = bare_operator(site) == "_local_scalar_dense" or not site.operator.startswith("aten::")
        return site.mechanism == "read" and by_python and deciding_frame(site) is not None

    def remedy(self, site: Site) -> str:
        frame = deciding_frame(site)
        if frame is None:
            return self.advice
        if advice := _find_advice(site, frame)[0]:
            file = short_path(frame).rpartition(":")[0]  # what it reads in two lines is one thing to change
            return f"{frame.library} reads a value at {file} ({frame.function}): {advice}"
        return advise_for_library(site, match_rule(site, self.code).advice)

    def known_change(self, site: Site) -> str:
        frame = deciding_frame(site)
        if frame is None:
            return ""
        function = frame.function.rpartition(".")[2]
        return _find_advice(site, frame)[1] or f"call `{function}` of {frame.library} less often"


def _find_advice(site: Site, frame: SourceLine) -> tuple[str, str]:
    """Return advice for a line of a library that is known to read, in a sentence and in a few words."""
    file = frame.file.replace("\\", "/")
    code_and_functions = " ".join(
        (frame.code, *(library_frame.function for library_frame in site.library_frames))
    ).lower()
    for library, part, word, advice, change in _KNOWN:
        if frame.library == library and part in file and word in code_and_functions:
            return advice, change
    return "", ""
