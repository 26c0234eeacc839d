"""Settings as torch reads them."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gapless.errors import EXIT_USAGE
from gapless.memory.settings import NO_LIMIT, InvalidSettings, Settings, parse
from gapless.memory.sizes import MIB


def test_nothing_is_the_default():
    assert parse("") == parse("  ") == Settings()
    assert not Settings().collects
    assert Settings().max_split_size == NO_LIMIT


def test_all_that_changes_behaviour():
    parsed = parse(
        "max_split_size_mb: 128 , garbage_collection_threshold:0.8,per_process_memory_fraction:0.5,"
        "expandable_segments:True,max_non_split_rounding_mb:64,large_segment_size_mb:32,"
        "roundup_power2_divisions:4"
    )
    assert parsed == Settings(
        max_split_size=128 * MIB,
        max_non_split_rounding=64 * MIB,
        large_segment_size=32 * MIB,
        divisions=(4,) * 16,
        garbage_collection_threshold=0.8,
        expandable_segments=True,
        fraction=0.5,
    )
    assert parsed.collects


def test_the_segment_size_is_read_before_what_depends_on_it():
    assert parse("large_segment_size_mb:64").max_non_split_rounding == 64 * MIB
    with pytest.raises(InvalidSettings, match="max_split_size_mb must be at least 64, but is 32"):
        parse("max_split_size_mb:32,large_segment_size_mb:64")


def test_the_last_of_two_counts():
    assert not parse("expandable_segments:True,expandable_segments:False").expandable_segments


def test_garbage_is_only_collected_below_the_whole_device():
    assert not parse("garbage_collection_threshold:0.8").collects
    assert parse("garbage_collection_threshold:0.8,per_process_memory_fraction:0.9").collects


def test_what_changes_nothing_is_named():
    parsed = parse("pinned_num_register_threads:8,release_lock_on_cudamalloc:True,max_split_size_mb:64")
    assert parsed.ignored == ("pinned_num_register_threads", "release_lock_on_cudamalloc")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_split_size_mb:19", "max_split_size_mb must be at least 20, but is 19"),
        ("max_split_size_mb", "max_split_size_mb has no value: write max_split_size_mb:VALUE"),
        ("max_split_size_mb:", "max_split_size_mb has no value"),
        ("max_split_size_mb:many", "'many' is not a number"),
        ("max_split_size_mb:99999999999999999999999", "is too large a number"),
        ("max_split_size_mb=128", "PyTorch has no allocator setting 'max_split_size_mb=128'"),
        ("max_non_split_rounding_mb:10", "max_non_split_rounding_mb must be at least 20"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be over 10, but is 10"),
        ("expandable_segments:true", "expandable_segments must be written True or False, not 'true'"),
        ("expandable_segments:1", "not '1'"),
        ("garbage_collection_threshold:1.0", "must be between 0 and 1, but is 1"),
        ("garbage_collection_threshold:0", "must be between 0 and 1, but is 0"),
        ("garbage_collection_threshold:nan", "must be between 0 and 1, but is nan"),
        ("garbage_collection_threshold:1e-320", "1e-320 is too large or too small a number"),
        ("per_process_memory_fraction:1e999", "1e999 is too large or too small a number"),
        ("per_process_memory_fraction:1.5", "must be between 0 and 1, but is 1.5"),
        ("roundup_power2_divisions:3", "must be a power of two, but is 3"),
        ("roundup_power2_divisions:0", "must be a power of two, but is 0"),
        ("roundup_power2_divisions:[256:3]", "must be powers of two or 0, but one is 3"),
        ("roundup_power2_divisions:[3:4]", "boundaries that are powers of two, not 3"),
        ("roundup_power2_divisions:[256:1,512:2", "a bracket that is not closed"),
        ("backend:mine", "backend must be native or cudaMallocAsync, not 'mine'"),
        ("pinned_num_register_threads:3", "must be a power of two up to 128, but is 3"),
        ("pinned_reserve_segment_size_mb:0", "must be over 0"),
        ("max_split_size:128", "PyTorch has no allocator setting 'max_split_size'; known settings: backend"),
    ],
)
def test_what_torch_refuses(text, said):
    with pytest.raises(InvalidSettings) as caught:
        parse(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE


# Against torch's own parser, which a build without CUDA has too. It knows only the common keys: unknown
# keys and those of CUDA it skips.
COMMON = (
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "large_segment_size_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "pinned_use_background_threads",
)
values = st.one_of(
    st.sampled_from(
        ["True", "False", "true", "", "[]", "[", "[>:4]", "[1:2,>:8]", "[256:1,512:2,1024:4,>:8]", "[256:3]"]
    ),
    st.sampled_from(
        ["[3:1]", "[256:1", "[256:1,]", "[256:1 512:2]", "0.8", ".5", "1.0", "0", "-1", "20x", "x"]
    ),
    st.integers(0, 130).map(str),
    st.floats(0, 1.2).map(lambda x: f"{x:.3g}"),
)
pairs = st.tuples(st.sampled_from(COMMON), st.sampled_from([":", ": ", " :", ""]), values).map("".join)
texts = st.lists(pairs, max_size=3).map(",".join)


@settings(max_examples=200, deadline=None)
@given(texts)
@example("max_split_size_mb:20,")
@example("max_split_size_mb:64,large_segment_size_mb:65")
@example("roundup_power2_divisions:[256:0,>:4]")
@example("garbage_collection_threshold:1e-320")
@example("garbage_collection_threshold:1e999")
def test_what_torch_takes_is_taken_and_nothing_else(text):
    torch = pytest.importorskip("torch")
    set_settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if set_settings is None or not hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        pytest.skip("this torch does not tell")
    try:
        set_settings(text)
        accepted = True
    except (RuntimeError, ValueError, IndexError):
        accepted = False
    finally:
        set_settings("large_segment_size_mb:20")  # the only one that stays as it was
    try:
        parse(text)
        taken = True
    except InvalidSettings as error:
        taken = False
        if "PyTorch has no allocator setting" in str(error):
            return  # a build for CUDA refuses what this one skips
    assert taken == accepted


def test_what_is_refused_at_once():
    parsed = parse("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5")
    assert (parsed.rejects, parsed.fraction, parsed.ignored) == (True, 0.5, ())
    assert not parse("throw_on_cudamalloc_oom:False").rejects
    with pytest.raises(InvalidSettings, match="throw_on_cudamalloc_oom must be written True or False, not"):
        parse("throw_on_cudamalloc_oom:1")


def test_unsimulated_settings_are_distinguished_from_ineffective_ones():
    parsed = parse("graph_capture_record_stream_reuse:True,expandable_segments_reserve:40G")
    assert parsed.unsimulated == ("graph_capture_record_stream_reuse", "expandable_segments_reserve")
    assert parsed.ignored == ()
