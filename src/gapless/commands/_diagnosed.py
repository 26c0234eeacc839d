"""Saved measurements of a loader: from ``gapless loader -o``, or in a session of ``gapless check``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.loaders import own_step, with_measurement
from gapless.errors import UnreadableInput
from gapless.files.input import read_whole
from gapless.files.kinds import kind_of
from gapless.model import Report
from gapless.model.loading import Demand, Diagnosis, load


def load_any_diagnosis(path: str) -> Diagnosis:
    """Load the loader measurement in the file at `path`; of a session, that of the loader waited for longest.

    Raises:
        UnreadableInput: the file holds none.
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


class _LoaderReport(msgspec.Struct):
    """The part of ``gapless loader -f json`` that is read back."""

    loader: Diagnosis | None = None


def _of_report(path: str) -> Diagnosis:
    try:
        saved = msgspec.json.decode(read_whole(path), type=_LoaderReport).loader
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"{path} is a damaged report: {error}") from None
    if saved is None:
        raise UnreadableInput(f"{path} is a report, but not of a loader: gapless loader -f json writes one")
    return saved


def _of_session(path: str) -> Diagnosis:
    from gapless.model.session import load as load_session

    uses = [use for use in load_session(path).loaders if use.diagnosis is not None]
    if not uses:
        raise UnreadableInput(
            f"{path} holds no loader measurement: gapless check measures only loaders that do not keep up; "
            "gapless loader -o loader.json train.py:make_loader measures any"
        )
    longest = max(uses, key=lambda use: use.late.likely)
    assert longest.diagnosis is not None
    longest_diagnosis = msgspec.structs.replace(longest.diagnosis, line=longest.line)
    if len(uses) == 1 or longest.line is None:
        return longest_diagnosis
    which = f"{len(uses)} loaders were measured; this is the one created at line {longest.line.line}"
    return msgspec.structs.replace(longest_diagnosis, notes=(which, *longest_diagnosis.notes))


def add_diagnosis(reports: Sequence[Report], diagnosis: Diagnosis) -> list[Report]:
    """Return the reports of profiles with the loader's measurement, predicted for each profile's own step."""
    from gapless.loading.predict import predict_again

    explained_reports = []
    for report in reports:
        step = own_step(report.profile) if report.profile is not None else 0.0
        demand = Demand(step=step, busy=diagnosis.demand.busy, source="profile")
        explained_reports.append(
            with_measurement(report, predict_again(diagnosis, demand)) if step else report
        )
    return explained_reports
