"""Stand-ins: known packages with CUDA kernels, computed with plain torch where they are not installed.

They can be imported only if no real package is found, and only while the emulation is on. Launches and waits
are those of the packages' own sources; docs/standins.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.standins import finder
from gapless.emulation.standins.launch import LaunchState
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches

_MAX_NAMES_SHOWN = 5
"""Missing names listed in the note; more would not fit a line."""
_computed_packages: set[str] = set()
"""Packages whose stand-ins computed something since they were switched on."""


def install(core: EmulationCore, patches: Patches, for_everyone: bool | None = None) -> None:
    """Let the script import stand-ins: all libraries too if `for_everyone`, nobody if it is False.

    Real packages are patched to run without a GPU in any case.
    """
    patches.set(LaunchState, "core", core)
    patches.set(LaunchState, "used", staticmethod(partial(_record_use, core)))
    _computed_packages.clear()
    for name in sorted(finder.package_names()):
        when_imported(
            name,
            partial(_patch_real_package, patches),
            patches,
            around=partial(_import_context, name, patches),
        )
    finder.switch_on(for_everyone)


def uninstall() -> None:
    """Remove stand-ins from the imported modules, and find them no more."""
    finder.switch_off()


def notes(failure: str = "") -> tuple[str, ...]:
    """Return notes on names that stand-ins lack, and on packages hidden from a library that then failed with
    the message `failure`."""
    return (*_missing_names_note(), *_refused_notes(failure))


def _refused_notes(failure: str) -> Iterator[str]:
    """Yield how a library finds a stand-in, for packages hidden from it that the message `failure` names."""
    words = _letters_only(failure)
    for distribution in dict.fromkeys(refusal.distribution for refusal in finder.requests.refusals):
        libraries = sorted(
            {refusal.library for refusal in finder.requests.refusals if refusal.distribution == distribution}
        )
        if _letters_only(distribution) in words:
            yield (
                f"{', '.join(libraries)} looked for {distribution}, which is not installed here: "
                "`--standins` lets libraries find Gapless's stand-in for it"
            )


def _letters_only(text: str) -> str:
    """Return `text` in lower case with only its letters and digits."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _missing_names_note() -> tuple[str, ...]:
    """Return a note on names missing from stand-ins that computed something; () if there are none.

    Libraries only probed the others.
    """
    missing = tuple(name for name in finder.missing_names() if name.partition(".")[0] in _computed_packages)
    if not missing:
        return ()
    rest = f" and {len(missing) - _MAX_NAMES_SHOWN} more" if len(missing) > _MAX_NAMES_SHOWN else ""
    names = ", ".join(missing[:_MAX_NAMES_SHOWN])
    return (f"the stand-in lacks {names}{rest}: importing it raised an ImportError",)


def _record_use(core: EmulationCore, name: str) -> None:
    """Note that results come from the stand-in for package `name`."""
    _computed_packages.add(name)
    package = finder.imported_package(name)
    if package is not None:
        core.note(
            f"{package.distribution} is not installed here: Gapless computed its functions in plain "
            f"PyTorch ({package.lacks}); --no-standins runs without this"
        )


def _patch_real_package(patches: Patches, module: ModuleType) -> None:
    """Call the ``installed`` hook of the declaration for a real package that was imported."""
    if not finder.is_standin(module):
        change = getattr(finder.import_declaration(module.__name__), "installed", None)
        if change is not None:
            change(module, patches)


def _import_context(name: str, patches: Patches) -> AbstractContextManager[object]:
    context = getattr(finder.import_declaration(name), "while_importing", nullcontext)
    return context(patches)  # type: ignore[no-any-return]
