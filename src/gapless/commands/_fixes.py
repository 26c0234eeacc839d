"""Fixes in reports for machines."""

from __future__ import annotations

import msgspec

from gapless.errors import UsageError
from gapless.model import Report, Session

_FORMS = ("json", "sarif")
"""Formats that programs read, which can apply edits."""


def with_fixes(report: Report, session: Session, form: str) -> Report:
    """Return `report` with the fixes of `session`, without proofs, if the format `form` has them.

    Where the script is missing, as on another machine, there are none.
    """
    if form not in _FORMS or not session.sites:
        return report
    from gapless.fixes.planning import main_file, plan_fixes
    from gapless.fixes.proof.project import ScriptProject

    path = main_file(session)
    try:
        root = ScriptProject.of(path).root
    except UsageError:
        return report
    return msgspec.structs.replace(report, project=str(root), fixes=plan_fixes(session, root, path))
