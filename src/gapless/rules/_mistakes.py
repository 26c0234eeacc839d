"""Rules for mistakes in what a loader yields, which are recognized on the items themselves."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, LoaderRule, Site
from gapless.model.loader_use import LoaderUse


class MistakeRule(LoaderRule):
    """A rule for each mistake of its code that a loader made."""

    def of_loader(self, use: LoaderUse) -> Iterator[Hit]:
        for mistake in use.mistakes:
            if mistake.code == self.code:
                stack = (mistake.line,) if mistake.line is not None else ()
                site = Site(operator="", mechanism="none", stack=stack) if stack else None
                yield Hit(evidence=(mistake.seen,), remedy=mistake.remedy, site=site)
