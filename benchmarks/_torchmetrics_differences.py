"""Where a test of TorchMetrics' own differs on purpose: how the test begins, and why."""

WORDS = "the same refusal in other words"
GROUPS = "`_state_is_copy` is private to TorchMetrics' groups; ours share statistics, not copies of states"

NAMES = "states have other names"
NEAR_CONSTANT = "computed in float64, which needs no warning of values that vary little"

INTENDED: dict[str, str] = {
    "bases.test_collections::test_collection_add_metrics": WORDS,
    "bases.test_collections::test_collection_state_being_re_established_after_copy": GROUPS,
    "bases.test_metric::test_custom_availability_check_and_sync_fn": "`dist_sync_fn` is called once for each "
    "state of a statistic, which are fewer",
    "classification.test_logauc::test_wrapper_class": "`LogAUC` is TorchMetrics' own",
    "image.test_ssim::test_ssim_invalid_inputs": "the refusal names `sigma`, which is what does not fit",
    "regression.test_pearson::test_pearson_update_shape": NAMES,
    "regression.test_pearson::test_pearsons_warning_on_small_input": NEAR_CONSTANT,
    "regression.test_tweedie_deviance::test_error_on_invalid_inputs": "values that the distribution cannot "
    "have are left out and told",
    **{
        f"retrieval.test_{file}.Test{name}::test_arguments_functional_metric": "what is not 0 or 1 is a "
        "RuntimeError, as every bad value"
        for file, name in (
            ("fallout", "FallOut"),
            ("hit_rate", "HitRate"),
            ("map", "MAP"),
            ("mrr", "MRR"),
            ("precision", "Precision"),
            ("r_precision", "RPrecision"),
            ("recall", "Recall"),
        )
    },
    "wrappers.test_classwise::test_raises_error_on_wrong_input": WORDS,
    "wrappers.test_minmax::test_basic_example": "after `forward` the value is that of all batches",
    "wrappers.test_multitask::test_clone_edge_cases": "a bad `postfix` is refused as one, not as a `prefix`",
    "wrappers.test_multitask::test_plot": "not there",
    "wrappers.test_running::test_errors_on_wrong_input": "Pearson's correlation can run over a window",
}
