"""Stand-ins: known packages with CUDA kernels, computed with plain torch where they are not installed.

They can be imported only where nothing else is found, and only while the emulation is on. What is launched
and what waits is as in the packages' own sources; docs/standins.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType

from gapless.emulation.core.core import Core
from gapless.emulation.standins import finder
from gapless.emulation.standins.launch import State
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches

_FEW = 5
_computed: set[str] = set()
"""Packages whose stand-ins were called since they were switched on."""


def install(core: Core, patches: Patches, wanted: bool | None = None) -> None:
    """Let stand-ins be imported by the script, and where they are `wanted` by every library.

    Real packages run without a GPU in any case.
    """
    patches.set(State, "core", core)
    patches.set(State, "used", staticmethod(partial(_used, core)))
    _computed.clear()
    for name in sorted(finder.names()):
        when_imported(name, partial(_installed, patches), patches, around=partial(_around, name, patches))
    finder.switch_on(wanted)


def uninstall() -> None:
    """Forget what was imported of stand-ins."""
    finder.switch_off()


def notes(failure: str = "") -> tuple[str, ...]:
    """What stand-ins lack, and which library was told of none and then failed with the message `failure`."""
    return (*_lacking(), *_missed(failure))


def _missed(failure: str) -> Iterator[str]:
    """Say how a library finds a package that the message `failure` names, and that it was told is missing."""
    words = _plain(failure)
    for distribution in dict.fromkeys(one.distribution for one in finder.asks.refused):
        libraries = sorted({one.library for one in finder.asks.refused if one.distribution == distribution})
        if _plain(distribution) in words:
            yield (
                f"{', '.join(libraries)} looked for {distribution}, which is not installed here: "
                "`--standins` lets libraries find Gapless's stand-in for it"
            )


def _plain(text: str) -> str:
    """`text` in small letters, without what stands between words."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _lacking() -> tuple[str, ...]:
    """What was asked of stand-ins that computed something, and that they do not have.

    Of the others, libraries only asked what there is.
    """
    asked = tuple(name for name in finder.asked() if name.partition(".")[0] in _computed)
    if not asked:
        return ()
    rest = f" and {len(asked) - _FEW} more" if len(asked) > _FEW else ""
    return (f"the stand-in lacks {', '.join(asked[:_FEW])}{rest}: importing it raised an ImportError",)


def _used(core: Core, name: str) -> None:
    """Say which stand-in the results come from."""
    _computed.add(name)
    package = finder.standing_in(name)
    if package is not None:
        core.note(
            f"{package.distribution} is not installed here: Gapless computed its functions in plain "
            f"PyTorch ({package.lacks}); --no-standins runs without this"
        )


def _installed(patches: Patches, module: ModuleType) -> None:
    """Tell the package's file of the real one."""
    if not finder.is_standin(module):
        change = getattr(finder.file_of(module.__name__), "installed", None)
        if change is not None:
            change(module, patches)


def _around(name: str, patches: Patches) -> AbstractContextManager[object]:
    context = getattr(finder.file_of(name), "while_importing", nullcontext)
    return context(patches)  # type: ignore[no-any-return]
