"""`report`: everything that was saved or measured, to the one document."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from gapless.analyze import session as of_session
from gapless.model import Report, Session


@singledispatch
def report(seen: Any, **how: Any) -> Report:
    """The whole document for what was captured: a session, the profiles of one run, a run's memory …

    Raises:
        TypeError: there is no report of such a thing.
    """
    raise TypeError(f"no report of a {type(seen).__name__}: a session, profiles, a memory run or a diagnosis")


@report.register
def _(seen: Session, **how: Any) -> Report:
    return of_session.report(seen, **how)
