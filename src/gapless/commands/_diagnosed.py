"""A saved measurement of a loader: of ``gapless loader -o``, or in a session of ``gapless check``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.loaders import own_step, with_measurement
from gapless.errors import UnreadableInput
from gapless.files.input import read_whole
from gapless.files.kinds import kind_of
from gapless.model import Report
from gapless.model.loading import Demand, Diagnosis, load


def diagnosis(path: str) -> Diagnosis:
    """What the file at `path` holds: as saved, or in a report; of a session the loader waited for longest.

    Raises:
        UnreadableInput: there is none in it.
    """
    kind = kind_of(path)
    if kind == "loader":
        return load(path)
    if kind == "session":
        return _of_session(path)
    if kind == "report":
        return _of_report(path)
    raise UnreadableInput(
        f"{path} is not a saved loader measurement: gapless loader -o loader.json train.py:make_loader"
    )


class _Document(msgspec.Struct):
    """What ``gapless loader -f json`` writes, as far as it is read."""

    loader: Diagnosis | None = None


def _of_report(path: str) -> Diagnosis:
    try:
        made = msgspec.json.decode(read_whole(path), type=_Document).loader
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"{path} is a damaged report: {error}") from None
    if made is None:
        raise UnreadableInput(f"{path} is a report, but not of a loader: gapless loader -f json writes one")
    return made


def _of_session(path: str) -> Diagnosis:
    from gapless.model.session import load as load_session

    uses = [one for one in load_session(path).loaders if one.diagnosis is not None]
    if not uses:
        raise UnreadableInput(
            f"{path} holds no loader measurement: gapless check measures only loaders that do not keep up; "
            "gapless loader -o loader.json train.py:make_loader measures any"
        )
    longest = max(uses, key=lambda one: one.late.likely)
    assert longest.diagnosis is not None
    made = msgspec.structs.replace(longest.diagnosis, line=longest.line)
    if len(uses) == 1 or longest.line is None:
        return made
    which = f"{len(uses)} loaders were measured; this is the one created at line {longest.line.line}"
    return msgspec.structs.replace(made, notes=(which, *made.notes))


def explained(reports: Sequence[Report], diagnosis: Diagnosis) -> list[Report]:
    """Reports of profiles with what was measured of their loader, predicted for their own steps."""
    from gapless.loading.predict import again

    found = []
    for one in reports:
        step = own_step(one.profile) if one.profile is not None else 0.0
        demand = Demand(step=step, busy=diagnosis.demand.busy, source="profile")
        found.append(with_measurement(one, again(diagnosis, demand)) if step else one)
    return found
