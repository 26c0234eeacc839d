"""Parse HTML reports: check that they are well-formed, and return their ids, tables and data."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from typing import Any

VOID = frozenset({"meta", "link", "input", "br", "img", "hr"})
REFERENCES = frozenset({"href", "src", "srcset", "action", "poster", "data", "background", "formaction"})


class Page(HTMLParser):
    """The elements of a page, its text, and what is wrong with it."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.open: list[str] = []
        self.elements: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.references: list[str] = []
        self.labels: list[str] = []
        self.handlers: list[str] = []
        self.attributes: list[str] = []
        self.words: list[str] = []
        self.raw: dict[str, str] = {}
        self.problems: list[str] = []
        self._id = ""
        self.feed(source)
        self.close()
        self.problems += [f"<{tag}> is never closed" for tag in self.open]

    @property
    def text(self) -> str:
        """What is to be read, elements run together."""
        return "".join(self.words)

    @property
    def data(self) -> Any:
        """What the timeline draws; None where there is none."""
        return json.loads(self.raw["timeline-data"]) if "timeline-data" in self.raw else None

    def drawn(self, name: str) -> Any:
        """What is drawn in the section `name`."""
        return json.loads(self.raw[f"{name}-data"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        self._id = dict(attrs).get("id") or ""
        for name, value in attrs:
            self.attributes.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            elif name in ("aria-labelledby", "aria-describedby"):
                self.labels += (value or "").split()
            elif name.startswith("on"):
                self.handlers.append(name)
            elif name in REFERENCES:
                (self.links if tag == "a" else self.references).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.problems.append(f"</{tag}> where <{self.open[-1] if self.open else ''}> is open")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.raw[self._id or self.open[-1]] = self.raw.get(self._id or self.open[-1], "") + data
        else:
            self.words.append(data)

    def handle_comment(self, data: str) -> None:
        self.problems.append(f"a comment: {data[:60]}")


def assert_sound(page: Page) -> None:
    """Elements are closed in order, names are unique, links lead somewhere, nothing comes from elsewhere."""
    assert page.problems == []
    assert page.open == []
    twice = [name for name, times in Counter(page.ids).items() if times > 1]
    assert twice == []
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert set(page.labels) <= set(page.ids)
    assert page.references == ["data:,"]
    assert page.handlers == []
    assert page.elements["h1"] == page.elements["main"] == page.elements["nav"] == 1
