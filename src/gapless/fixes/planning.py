"""Plan the fixes of a session: ask the rewrites about each place that waits."""

from __future__ import annotations

import ast
import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gapless.analyze.session_report import draft
from gapless.errors import UnreadableInput
from gapless.files.input import read_whole, source_text
from gapless.fixes.editing.editable import EditableFile, OtherForm, Refused
from gapless.fixes.editing.numbers_read import reading_call
from gapless.fixes.editing.places import Draft, FixPlace, UserProgram
from gapless.fixes.joint_reads import join_reads
from gapless.fixes.rewrites import rewrites_of
from gapless.model import Finding, Session, Site, Span
from gapless.model.fix import Fix, apply_edits
from gapless.rules import match_rule
from gapless.uses.source_files import Project
from gapless.uses.starts import RunningPlace, find_expression

_ONCE = ("set-up", "first-step", "after")
"""Where waits are that happen once, for which nobody changes code."""
_IN_BACKWARD = "it waits in backward of this line"


@dataclass
class Files:
    """The files of the project below `root` that may be edited, each read once."""

    root: Path
    project: Project = field(default_factory=lambda: Project(source_text))
    _files: dict[str, EditableFile] = field(default_factory=dict)

    def __call__(self, path: str) -> EditableFile:
        """Return the file at `path`.

        Raises:
            Refused: it is outside the project, installed, or no Python that can be analysed.
        """
        if path not in self._files:
            self._files[path] = self._open(path)
        return self._files[path]

    def _open(self, path: str) -> EditableFile:
        place = Path(path).resolve()
        if not place.is_relative_to(self.root):
            raise Refused("it is outside the project")
        if {"site-packages", "dist-packages"} & set(place.parts):
            raise Refused("it is installed code")
        source = self.project.file(path)
        if source is None:
            raise Refused("its file cannot be read, or is too large")
        try:
            data = read_whole(place)
        except UnreadableInput as error:
            raise Refused(str(error)) from None
        return EditableFile(source, place.relative_to(self.root).as_posix(), data)


class _Key(msgspec.Struct, frozen=True):
    """What makes sites one place: the rule, and the expression."""

    code: str
    file: str
    line: int
    span: Span | None


@dataclass
class _Waiting:
    """The sites of one place, and the finding and waits per step of each of them."""

    sites: list[Site] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    waits: float = 0.0
    bytes: int = 0


def plan_fixes(session: Session, root: Path, script: str) -> tuple[Fix, ...]:
    """Return a fix, or the reason why there is none, for each place of `session` that waits.

    `script` is the path of the program's main file. Fixes come in the order of their findings.
    """
    files = Files(root)
    program = UserProgram(files.project, files, script, session.loaders)
    places = _collect(session)
    program.copied_back = {(key.file, key.line, key.span) for key in places if key.code == "GAP122"}
    opened: dict[_Key, FixPlace | str] = {}
    for key, waiting in places.items():
        try:
            opened[key] = _open_place(program, key, waiting)
        except Refused as reason:
            opened[key] = str(reason)
    for place in opened.values():
        if isinstance(place, FixPlace):
            program.reads[reading_call(place.file.source, place.node)] = next(iter(place.site.tensors), None)
    fixes = [_fix(key, place, places[key]) for key, place in opened.items()]
    _join(fixes, list(opened.values()))
    return tuple(_share(fix, fixes) if fix.refusal == _IN_BACKWARD else fix for fix in fixes)


def _join(fixes: list[Fix], places: Sequence[FixPlace | str]) -> None:
    """Replace those of `fixes` at `places` that would not be written, but can read together."""
    left = [
        (number, place)
        for number, place in enumerate(places)
        if isinstance(place, FixPlace) and (fixes[number].refusal or fixes[number].level == "suggested")
    ]
    joints = join_reads([place for _, place in left])
    for position, joint in joints.items():
        number, place = left[position]
        joined = [other for other in joints.values() if other is joint]
        waits = fixes[number].waits * (1 - 1 / len(joined))
        with contextlib.suppress(Refused):
            fix = msgspec.structs.replace(fixes[number], refusal="", waits=waits)
            fixes[number] = _accept(fix, place, joint)


def _share(fix: Fix, fixes: Iterable[Fix]) -> Fix:
    """Return `fix` of a wait in backward with the edits of its line's forward waits, which remove it, too."""
    for other in fixes:
        if other.edits and (other.code, other.line.where) == (fix.code, fix.line.where):
            return msgspec.structs.replace(other, line=fix.line, waits=fix.waits)
    return fix


def _collect(session: Session) -> dict[_Key, _Waiting]:
    places: defaultdict[_Key, _Waiting] = defaultdict(_Waiting)
    sizes = _bytes_of_calls(session)
    for finding in draft(session, priced=False, by_line=True).findings:
        for site in finding.sites:
            if site.line is None or site.mechanism == "none":
                continue
            waiting = places[_Key(match_rule(site).code, site.line.file, site.line.line, site.span)]
            waiting.sites.append(site)
            waiting.findings.append(finding)
            waiting.waits += finding.frequency.per_step / len(finding.sites)
            waiting.bytes = max(waiting.bytes, sizes.get(site, 0))
    return places


def _bytes_of_calls(session: Session) -> dict[Site, int]:
    """Return the largest copy of each site, as far as events tell it."""
    sizes: dict[Site, int] = {}
    for event in session.events:
        site = session.sites[event.site]
        sizes[site] = max(sizes.get(site, 0), event.bytes // max(event.calls, 1))
    return sizes


def _open_place(program: UserProgram, key: _Key, waiting: _Waiting) -> FixPlace:
    """Return what a rewrite needs to know of a place.

    Raises:
        Refused: it is no expression in the user's own file.
    """
    first = waiting.sites[0]
    line = first.line
    assert line is not None
    if not line.is_user:
        raise Refused(f"{line.library} waits by itself")
    if all(finding.frequency.when in _ONCE for finding in waiting.findings):
        raise Refused("it waits only once, in set-up or at the end")
    file = program.files(key.file)
    if key.span is None:
        raise Refused(_IN_BACKWARD if first.in_backward else "the session holds no exact place")
    node = find_expression(file.source, RunningPlace(line, key.span))
    if node is None or not _is_exact(file, node):
        raise Refused("the file has changed since the run")
    kinds = {tuple((each.dtype, len(each.shape)) for each in site.tensors) for site in waiting.sites}
    tensors = first.tensors if len(kinds) == 1 else ()
    uses = tuple(dict.fromkeys(use for site in waiting.sites for use in site.uses))
    often = max(waiting.findings, key=lambda finding: finding.frequency.per_step)
    site = msgspec.structs.replace(first, tensors=tensors, uses=uses)
    return FixPlace(program, file, node, site, often.frequency, waiting.bytes)


def _is_exact(file: EditableFile, node: ast.AST) -> bool:
    """Whether the bytes at the place of `node` are those of `node`: within texts Python may be mistaken."""
    if not isinstance(node, ast.expr):
        return True
    try:
        return ast.unparse(ast.parse(f"({file.text(node)}\n)", mode="eval")) == ast.unparse(node)
    except (SyntaxError, ValueError):
        return False


def _fix(key: _Key, place: FixPlace | str, waiting: _Waiting) -> Fix:
    line = waiting.sites[0].line
    assert line is not None
    fix = Fix(code=key.code, line=line, waits=round(waiting.waits, 4))
    if isinstance(place, str):
        return msgspec.structs.replace(fix, refusal=place)
    reasons: list[Refused] = []
    for rewrite in rewrites_of(key.code):
        try:
            return _accept(fix, place, rewrite.write(place))
        except Refused as reason:
            reasons.append(reason)
    telling = [reason for reason in reasons if not isinstance(reason, OtherForm)] or reasons[-1:]
    return msgspec.structs.replace(fix, refusal=str(telling[0]) if telling else "no rewrite for this rule")


def _accept(fix: Fix, place: FixPlace, draft: Draft) -> Fix:
    """Return `fix` with the edits of `draft`.

    Raises:
        Refused: the edited files would be no Python.
    """
    for name in {edit.file for edit in draft.edits}:
        file = place.file if place.file.name == name else None
        if file is None:
            continue
        try:
            ast.parse(apply_edits(file.data, [edit for edit in draft.edits if edit.file == name]))
        except (SyntaxError, ValueError):
            raise Refused("the change would not be valid Python") from None
    return msgspec.structs.replace(fix, title=draft.title, edits=draft.edits, level=draft.level)


def choose_fixes(fixes: Iterable[Fix]) -> tuple[list[Fix], list[Fix]]:
    """Return the fixes that can be applied together, and those whose edits overlap with an earlier one's."""
    chosen: list[Fix] = []
    late: list[Fix] = []
    for fix in fixes:
        if fix.refusal:
            continue
        taken = [edit for other in chosen for edit in other.edits]
        clash = any(edit not in taken and any(edit.overlaps(other) for other in taken) for edit in fix.edits)
        (late if clash else chosen).append(fix)
    return chosen, late


def main_file(session: Session) -> str:
    """Return the path of the program's main file: that of its outermost calls, otherwise as it was named."""
    for site in session.sites:
        for line in reversed(site.stack):
            if line.is_user and line.function in ("", "<module>") and os.path.isfile(line.file):
                return line.file
    return os.path.abspath(session.script[0] if session.script else "")
