"""The verdict on a loader."""

from __future__ import annotations

from gapless.model import Verdict
from gapless.model.loading import Diagnosis


def verdict(made: Diagnosis) -> Verdict:
    return Verdict(sentence=made.sentence)
