"""Arguments that keep the trainers of Hugging Face from waiting."""

from __future__ import annotations

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.loaders import pin_batches
from gapless.fixes.editing.places import Draft, FixPlace, has_open_options, keyword_of
from gapless.rules._places import is_below

CODES = ("GAP120", "GAP123", "GAP145")
ORDER = 3  # before those for the user's own copies

_NON_BLOCKING = "DataLoaderConfiguration(non_blocking=True)"


def write(place: FixPlace) -> Draft:
    """Return the change of a wait in a trainer that has an argument for it."""
    if place.site.deciding_frame is None:
        raise OtherForm("no trainer waits")
    if is_below(place.site, "transformers") and place.site.mechanism == "read":
        return _add(place, "TrainingArguments", "logging_nan_inf_filter", "False", "tried")
    if is_below(place.site, "transformers") and place.site.detail == "pinned":
        return _add(place, "TrainingArguments", "accelerator_config", '{"non_blocking": True}', "exact")
    if is_below(place.site, "accelerate", "send_to_device"):
        draft = _add(place, "Accelerator", "dataloader_config", _NON_BLOCKING, "exact")
        pinned = () if place.site.detail == "pinned" else pin_batches(place)
        return draft._replace(edits=(*draft.edits, *pinned))
    raise OtherForm("no argument of a trainer removes it")


def _add(place: FixPlace, maker: str, option: str, value: str, level: str) -> Draft:
    """Return the draft that gives the only call of `maker` an argument."""
    calls = place.file.source.calls.get(maker, [])
    if len(calls) != 1:
        raise Refused(f"`{maker}` is called in {len(calls) or 'no'} places of this file")
    call = calls[0]
    if keyword_of(call, option) is not None or has_open_options(call):
        raise Refused(f"`{option}` is set where `{maker}` is called, or may be")
    edits = [place.file.add_argument(call, f"{option}={value}")]
    if value == _NON_BLOCKING:
        edits += place.file.import_line("from accelerate import DataLoaderConfiguration")
    return Draft(f"`{option}={value}`", tuple(edits), "tried" if level == "tried" else "exact")
