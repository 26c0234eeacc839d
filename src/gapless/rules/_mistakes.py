"""Rules of what a loader yields wrongly: what was counted is judged where it can be seen, on the items."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, LoaderRule, Site
from gapless.model.loader_use import LoaderUse


class MistakeRule(LoaderRule):
    """Each mistake of this code that was seen of a loader."""

    def of_loader(self, use: LoaderUse) -> Iterator[Hit]:
        for seen in use.mistakes:
            if seen.code == self.code:
                stack = (seen.line,) if seen.line is not None else ()
                site = Site(operator="", mechanism="none", stack=stack) if stack else None
                yield Hit(evidence=(seen.seen,), remedy=seen.remedy, site=site)
