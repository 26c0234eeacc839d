"""Where a test of TorchMetrics' own differs on purpose: how the test begins, and why."""

WORDS = "the same refusal in other words"
GROUPS = "`_state_is_copy` is private to TorchMetrics' groups; ours share statistics, not copies of states"

INTENDED: dict[str, str] = {
    "bases.test_collections::test_collection_add_metrics": WORDS,
    "bases.test_collections::test_collection_state_being_re_established_after_copy": GROUPS,
    "bases.test_metric::test_custom_availability_check_and_sync_fn": "`dist_sync_fn` is called once for each "
    "state of a statistic, which are fewer",
    "wrappers.test_classwise::test_raises_error_on_wrong_input": WORDS,
    "wrappers.test_minmax::test_basic_example": "after `forward` the value is that of all batches",
    "wrappers.test_multitask::test_clone_edge_cases": "a bad `postfix` is refused as one, not as a `prefix`",
    "wrappers.test_multitask::test_plot": "not there",
    "wrappers.test_running::test_errors_on_wrong_input": "Pearson's correlation can run over a window",
}
