"""Which rule names a wait, and what it says about the user's own line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gapless.model import Site, SourceLine, WaitRule
from gapless.rules import match_rule, rules_of_kind

ITEM = {"operator": "aten::_local_scalar_dense", "mechanism": "read", "call": "Tensor.item"}
BOOL = {**ITEM, "call": "Tensor.__bool__"}
H2D = {"operator": "aten::_to_copy", "mechanism": "h2d", "detail": "pageable"}


def user(code: str = "step()", function: str = "train") -> SourceLine:
    return SourceLine(file="/home/me/train.py", line=7, function=function, code=code)


def lib(path: str, function: str, code: str = "") -> SourceLine:
    name = "python" if path.startswith("lib/") else path.split("/")[0]
    return SourceLine(file=f"/env/site-packages/{path}", line=12, function=function, code=code, library=name)


def site(code: str, *below: SourceLine, **values: object) -> Site:
    return Site(stack=(*below, user(code), user("main()", "<module>")), **values)  # type: ignore[arg-type]


def advice(code: str, *below: SourceLine, **values: object) -> str:
    wait = site(code, *below, **values)
    return match_rule(wait).remedy(wait)


THIN = lib("torch/_tensor.py", "Tensor.__contains__")
AGGREGATION = lib("torchmetrics/aggregation.py", "BaseAggregator._cast_and_nan_check_input")
WRAPPER = lib("torchmetrics/metric.py", "Metric._wrap_update.wrapped_func")

NAMED: list[tuple[str, Site]] = [
    ("GAP101", site("loss.item()", **ITEM)),
    ("GAP101", site("float(loss)", **{**ITEM, "call": "Tensor.__float__"})),
    ("GAP101", site("int(n)", **{**ITEM, "call": "Tensor.__int__"})),
    ("GAP101", site("statistics.mean(xs)", lib("lib/statistics.py", "mean"), **ITEM)),
    ("GAP102", site("if mask.any():", **BOOL)),
    ("GAP102", site("torch.is_nonzero(x)", **{**ITEM, "call": "torch.is_nonzero"})),
    (
        "GAP103",
        site("print(loss)", THIN, operator="Tensor.__repr__", mechanism="read", call="Tensor.__repr__"),
    ),
    ("GAP103", site('f"{loss:.3f}"', THIN, **{**ITEM, "call": "Tensor.__format__"})),
    (
        "GAP103",
        site(
            "log.info(loss)",
            lib("lib/logging/__init__.py", "getMessage"),
            **{**ITEM, "call": "Tensor.__repr__"},
        ),
    ),
    ("GAP104", site("torch.equal(a, b)", operator="aten::equal", mechanism="read")),
    ("GAP104", site("torch.allclose(a, b)", operator="torch.allclose", mechanism="read", call="allclose")),
    ("GAP105", site("x[:n]", **{**ITEM, "call": "Tensor.__index__"})),
    ("GAP105", site("x[i]", **{**ITEM, "call": "Tensor.__getitem__"})),
    ("GAP105", site("torch.zeros(n)", **{**ITEM, "call": ""})),
    ("GAP106", site("x.tolist()", operator="Tensor.tolist", mechanism="read", call="Tensor.tolist")),
    ("GAP106", site("x.tolist()", operator="torch.Tensor.tolist", mechanism="read", call="Tensor.tolist")),
    ("GAP107", site("3 in y", THIN, **{**ITEM, "call": "Tensor.__contains__"})),
    ("GAP108", site("torch.normal(m, s)", operator="aten::normal", mechanism="read")),
    ("GAP108", site("torch.linalg.matrix_exp(a)", operator="aten::linalg_matrix_exp", mechanism="values")),
    ("GAP109", site("torch.add(x, y, alpha=t)", **{**ITEM, "call": ""})),
    ("GAP109", site("torch.full((2,), t)", **{**ITEM, "call": "torch.full"})),
    ("GAP110", site("torch.nonzero(m)", operator="aten::nonzero", mechanism="size")),
    ("GAP111", site("x.to_sparse()", operator="aten::_to_sparse", mechanism="size")),
    ("GAP111", site("s.coalesce()", operator="aten::_coalesce", mechanism="size")),
    ("GAP112", site("x[mask]", operator="aten::index", mechanism="size", call="Tensor.__getitem__")),
    ("GAP112", site("x[mask]", operator="aten::index.Tensor", mechanism="size")),
    ("GAP112", site("x.masked_select(m)", operator="aten::masked_select", mechanism="size")),
    (
        "GAP112",
        site(
            "loss.backward()",
            operator="aten::_index_put_impl_",
            mechanism="size",
            node="IndexBackward0",
            forward=(user("x[mask]"),),
        ),
    ),
    ("GAP113", site("x[mask] = y", operator="aten::index_put_", mechanism="size", call="Tensor.__setitem__")),
    (
        "GAP113",
        site("loss.backward()", operator="aten::index", mechanism="size", node="IndexPutBackward0"),
    ),
    ("GAP114", site("torch.unique(x)", operator="aten::_unique2", mechanism="size")),
    ("GAP114", site("x.unique_consecutive()", operator="aten::unique_consecutive", mechanism="size")),
    ("GAP115", site("x.repeat_interleave(r)", operator="aten::repeat_interleave.Tensor", mechanism="size")),
    ("GAP116", site("torch.bincount(x)", operator="aten::bincount", mechanism="values")),
    ("GAP116", site("torch.histc(x)", operator="aten::histc", mechanism="values")),
    ("GAP117", site("F.one_hot(x)", operator="torch.nn.functional.one_hot", mechanism="values")),
    (
        "GAP118",
        site("pack(x, n)", lib("torch/nn/utils/rnn.py", "pack_padded_sequence"), **H2D),
    ),
    ("GAP119", site("torch.combinations(x)", operator="aten::whatever", mechanism="size")),
    ("GAP120", site("x.to(device)", **H2D)),
    ("GAP121", site("torch.tensor(1.0, device=d)", **{**H2D, "detail": "scalar"})),
    ("GAP122", site("x.cpu()", operator="aten::_to_copy", mechanism="d2h", detail="pageable")),
    ("GAP123", site("x.to(device)", **{**H2D, "detail": "pinned"})),
    ("GAP124", site("x[[0, 2]]", operator="aten::index", mechanism="h2d", detail="index")),
    ("GAP125", site("x[0] = 1.0", operator="aten::copy_", mechanism="h2d", detail="value")),
    (
        "GAP126",
        site("torch.save(s, f)", lib("torch/serialization.py", "_save"), **{**H2D, "mechanism": "d2h"}),
    ),
    (
        "GAP126",
        site(
            "torch.save({'s': scaler.state_dict()}, f)",
            lib("torch/amp/grad_scaler.py", "GradScaler._get_growth_tracker"),
            lib("torch/amp/grad_scaler.py", "GradScaler.state_dict"),
            **ITEM,
        ),
    ),
    ("GAP128", site("F.ctc_loss(a, b, c, d)", operator="aten::_ctc_loss", mechanism="h2d")),
    ("GAP127", site("net.to(device)", lib("torch/nn/modules/module.py", "Module.to"), **H2D)),
    ("GAP127", site("net.to(device)", **{**H2D, "detail": "module"})),
    ("GAP130", site("torch.cuda.synchronize()", operator="cudaDeviceSynchronize", mechanism="explicit")),
    ("GAP131", site("e.synchronize()", operator="cudaEventSynchronize", mechanism="explicit")),
    ("GAP132", site("torch.cuda.empty_cache()", operator="cudaFree", mechanism="free")),
    (
        "GAP133",
        site(
            "dist.barrier()",
            lib("torch/distributed/distributed_c10d.py", "barrier"),
            operator="cudaStreamSynchronize",
            mechanism="explicit",
        ),
    ),
    ("GAP140", site("scaler.step(o)", lib("torch/amp/grad_scaler.py", "GradScaler._maybe_opt_step"), **ITEM)),
    ("GAP141", site("m.update(x)", AGGREGATION, WRAPPER, **BOOL)),
    (
        "GAP142",
        site("Normal(a, b)", lib("torch/distributions/distribution.py", "Distribution.__init__"), **BOOL),
    ),
    ("GAP143", site("clip(p, 1.0)", lib("torch/nn/utils/clip_grad.py", "clip_grad_norm_"), **BOOL)),
    ("GAP144", site("torch.linalg.inv(a)", operator="aten::_linalg_check_errors", mechanism="status")),
    (
        "GAP145",
        site(
            "trainer.train()",
            lib("transformers/trainer.py", "Trainer._run_epoch", "and (torch.isnan(tr) or torch.isinf(tr))"),
            **BOOL,
        ),
    ),
    (
        "GAP146",
        site("model(x)", lib("transformers/masking_utils.py", "_ignore_causal_mask_sdpa"), **BOOL),
    ),
    (
        "GAP147",
        site(
            "net(x)", lib("torch/nn/modules/batchnorm.py", "forward"), **{**ITEM, "call": "Tensor.__float__"}
        ),
    ),
    ("GAP149", site("ema.update(m)", lib("somelib/ema.py", "update"), **ITEM)),
    ("GAP150", site("loss.backward()", **{**ITEM, "detail": "anomaly", "node": "MulBackward0"})),
    ("GAP151", site("o.step()", lib("torch/optim/lbfgs.py", "LBFGS.step"), **ITEM)),
    (
        "GAP152",
        site("enc(x, mask=m)", lib("torch/nn/modules/transformer.py", "_detect_is_causal_mask"), **BOOL),
    ),
    (
        "GAP153",
        site("gather(o)", lib("torch/distributed/distributed_c10d.py", "all_gather_object"), **ITEM),
    ),
    (
        "GAP154",
        site(
            "trainer.fit(m)",
            lib("lightning/fabric/utilities/apply_func.py", "convert_tensors_to_scalars.to_item"),
            **ITEM,
        ),
    ),
    ("GAP155", site("bar.set_postfix(l=loss)", THIN, lib("tqdm/std.py", "set_postfix"), **BOOL)),
    (
        "GAP156",
        site(
            "acc.update(p, t)",
            lib(
                "torchmetrics/functional/classification/stat_scores.py",
                "_binary_stat_scores_tensor_validation",
            ),
            operator="aten::_unique2",
            mechanism="size",
        ),
    ),
    (
        "GAP157",
        site(
            "acc.update(p, t)",
            lib("torchmetrics/utilities/data.py", "_bincount"),
            operator="aten::bincount",
            mechanism="values",
        ),
    ),
    (
        "GAP158",
        site(
            "m.update(1.0)",
            lib("torchmetrics/aggregation.py", "MeanMetric.update"),
            **{**H2D, "detail": "scalar", "call": "torch.as_tensor"},
        ),
    ),
    (
        "GAP159",
        site(
            "acc.update(p, t)",
            lib("torchmetrics/functional/classification/stat_scores.py", "_multiclass_stat_scores_update"),
            operator="aten::index",
            mechanism="size",
        ),
    ),
]


@pytest.mark.parametrize(("code", "wait"), NAMED, ids=[f"{c}-{s.stack[-2].code}" for c, s in NAMED])
def test_the_wait_is_named(code: str, wait: Site) -> None:
    named = match_rule(wait)
    assert named.code == code
    assert named.remedy(wait)


def test_every_rule_but_the_catch_all_is_reached() -> None:
    of_waits = {rule.code for rule in rules_of_kind(WaitRule)}
    cases = (Path(__file__).parent / "cases").glob("gap*.py")
    run = {code for case in cases for code in re.findall(r"# .*(GAP1\d\d)", case.read_text())}
    assert {code for code, _ in NAMED} | run >= of_waits - {"GAP100"}, (
        "a rule has no case in tests/rules/cases"
    )


# -- whose wait it is ------------------------------------------------------------------------------


def test_a_metric_of_the_users_own_is_not_a_librarys_doing() -> None:
    wait = Site(stack=(user("if x.any():", "update"), WRAPPER, user("m.update(x)")), **BOOL)  # type: ignore[arg-type]
    assert match_rule(wait).code == "GAP102"


def test_a_callback_of_the_users_own_is_not_a_librarys_doing() -> None:
    wait = Site(
        stack=(
            user("loss.item()"),
            lib("lightning/pytorch/loops/fit_loop.py", "run"),
            user("trainer.fit(m)"),
        ),
        **ITEM,  # type: ignore[arg-type]
    )
    assert match_rule(wait).code == "GAP101"


def test_the_loss_of_torch_keeps_the_patterns_rule() -> None:
    where = lib("torch/nn/modules/adaptive.py", "AdaptiveLogSoftmaxWithLoss.forward")
    wait = site("loss = criterion(x, y)", where, operator="aten::nonzero", mechanism="size")
    assert match_rule(wait).code == "GAP110"
    assert "torch/nn/modules/adaptive.py:12" in match_rule(wait).remedy(wait)


@pytest.mark.parametrize(
    "handed_on",
    [
        "ret = super().__torch_function__(func, types, args, kwargs)",
        "return func(*args, **(kwargs or {}))",
        "out = cls.__torch_dispatch__(func, types, args)",
    ],
)
def test_a_subclass_of_tensor_hands_on_what_its_user_asks(handed_on: str) -> None:
    override = handed_on.partition("__torch_")[2].partition("__")[0] or "function"
    tensors = lib("monai/data/meta_tensor.py", f"MetaTensor.__torch_{override}__", handed_on)
    wait = site("total += loss.item()", THIN, tensors, **ITEM)
    assert match_rule(wait).code == "GAP101"
    assert "`total = total + loss.detach().double()`" in match_rule(wait).remedy(wait)


def test_a_subclass_of_tensor_that_reads_by_itself_is_a_librarys_doing() -> None:
    reads = lib("units/tensor.py", "Length.__torch_function__", "if args[0].unit.item() != 1:")
    wait = site("y = x + 1", reads, **ITEM)
    assert match_rule(wait).code == "GAP149"
    assert match_rule(wait, besides="GAP149").advice in match_rule(wait).remedy(wait)


def test_a_library_whose_copies_have_a_setting_is_reported_with_the_setting() -> None:
    batch = lib("torch_geometric/data/data.py", "Data.to", "x.to(device, non_blocking=non_blocking)")
    assert advice('b = b.to("cuda")', batch, **H2D).startswith('`b.to("cuda", non_blocking=True)` with `b`')
    remedy = advice("trainer.run(loader)", batch, **H2D)
    assert "torch_geometric copies with its own `non_blocking` parameter, at torch_geometric/data/" in remedy
    assert "`DataLoader(..., pin_memory=True)`" in remedy
    unknown = advice("b = b.to(d, non_blocking=True)", lib("a/b.py", "f", "x.to(d)"), **H2D)
    assert "call that less often" in unknown
    assert "option" not in unknown


def test_what_a_distribution_draws_with_is_no_check_of_its_arguments() -> None:
    where = lib("torch/distributions/normal.py", "Normal.sample")
    wait = site("a = dist.sample()", where, operator="aten::normal", mechanism="read")
    assert match_rule(wait).code == "GAP108"
    assert "torch/distributions/normal.py:12" in match_rule(wait).remedy(wait)


def test_logging_by_the_trainer_is_no_nan_filter() -> None:
    where = lib("transformers/trainer.py", "Trainer._maybe_log_save_evaluate", "tr_loss.mean().item()")
    wait = site("trainer.train()", where, **ITEM)
    assert match_rule(wait).code == "GAP149"
    assert "logging_steps" in match_rule(wait).remedy(wait)


def test_batches_that_accelerate_copies_get_its_own_option() -> None:
    where = lib("accelerate/utils/operations.py", "send_to_device")
    text = advice("for batch in loader:", where, **{**H2D, "detail": "pinned"})
    assert "DataLoaderConfiguration(non_blocking=True)" in text
    text = advice(
        "trainer.train()",
        where,
        lib("transformers/trainer.py", "Trainer.train"),
        **{**H2D, "detail": "pinned"},
    )
    assert 'accelerator_config={"non_blocking": True}' in text


def test_wrappers_of_module_to_are_the_users_own_doing() -> None:
    wrapper = lib("transformers/modeling_utils.py", "PreTrainedModel.to")
    text = advice("net.to(device)", lib("torch/nn/modules/module.py", "Module._apply"), wrapper, **H2D)
    assert text == "create and move `net` once, before the loop"


def test_loading_a_state_is_a_checkpoint() -> None:
    where = lib("torch/nn/modules/module.py", "Module.load_state_dict")
    wait = site("net.load_state_dict(state)", where, **{**H2D, "operator": "aten::copy_"})
    assert match_rule(wait).code == "GAP126"
    assert match_rule(wait).remedy(wait) == "load a checkpoint once, before the loop"


def test_lightning_logging_of_a_number_gets_its_own_advice() -> None:
    where = lib("lightning/pytorch/core/module.py", "LightningModule.__to_tensor")
    text = advice('self.log("lr", 1e-2)', where, **{**H2D, "detail": "scalar", "call": "torch.tensor"})
    assert "torch.full((), value, device=self.device)" in text


def test_lightning_looks_at_the_loaders_length_once() -> None:
    frames = (
        lib("lightning/pytorch/utilities/data.py", "has_len"),
        lib("lightning/pytorch/loops/utilities.py", "run"),
    )
    assert "lightning/pytorch/utilities/data.py:12 (has_len)" in advice("trainer.fit(m)", *frames, **BOOL)


def test_a_wait_without_any_stack_is_named_too() -> None:
    assert match_rule(Site(**ITEM)).code == "GAP101"  # type: ignore[arg-type]


# -- advice about the line -------------------------------------------------------------------------

INDEX = {"operator": "aten::index", "mechanism": "size"}
WRITE = {"operator": "aten::_index_put_impl_", "mechanism": "size"}
LINES: list[tuple[str, dict[str, str], str]] = [
    ("total += loss.item()", ITEM, "`total = total + loss.detach().double()`"),
    ("total += loss.item() * len(x)", ITEM, "`total = total + loss.detach().double() * len(x)`"),
    ("losses.append(loss.item())", ITEM, "`losses.append(loss.detach())`"),
    ("losses.append(loss.item())", ITEM, "`torch.stack(losses).tolist()`"),
    ("value = (a - b).abs().item()", ITEM, "`value = (a - b).abs().detach()`"),
    (
        "running += float(loss)",
        {**ITEM, "call": "Tensor.__float__"},
        "`running = running + loss.detach().double()`",
    ),
    ('logs = {"a": a.item(), "b": b.item()}', ITEM, "keep `a` and `b` on the GPU"),
    ('"loss": loss.item(),', ITEM, "keep `loss` on the GPU"),
    ("if mask.any():", BOOL, "`torch.where(mask.any(), a, b)`"),
    ("elif x.sum() > 3:", BOOL, "`torch.where(x.sum() > 3, a, b)`"),
    ("if torch.isnan(loss):", BOOL, "`bad |= torch.isnan(loss).any()`"),
    ("if torch.isfinite(loss):", BOOL, "`gapless.ops.step_if(optimizer, torch.isfinite(loss).all())`"),
    ("ok = bool(torch.isfinite(loss))", BOOL, "`bad |= ~torch.isfinite(loss).all()`"),
    ("best = max(best, score)", BOOL, "`torch.maximum(best, score)`"),
    ("x = max(norm, 1e-6)", BOOL, "`torch.clamp(norm, min=1e-6)`"),
    ("x = min(1.0, norm)", BOOL, "`torch.clamp(norm, max=1.0)`"),
    ("worst = max(losses)", BOOL, "`torch.stack(losses).max()`"),
    ("y = a if flag else b", BOOL, "`torch.where(flag, a, b)`"),
    ("assert (x > 0).all()", BOOL, "assert what the CPU knows"),
    ('print(f"loss {loss}")', {**ITEM, "call": "Tensor.__format__"}, "showing `loss` reads a GPU tensor"),
    ("same = torch.equal(a, b)", {**ITEM, "call": "torch.equal"}, "`(a == b).all()`"),
    (
        "assert a.allclose(b, atol=1e-3)",
        {**ITEM, "call": "Tensor.allclose"},
        "`torch.isclose(a, b, atol=1e-3).all()`",
    ),
    ("y = x[:n]", {**ITEM, "call": "Tensor.__getitem__"}, "`torch.arange(x.shape[0], device=x.device) < n`"),
    ("row = table[best]", {**ITEM, "call": "Tensor.__getitem__"}, "`table.index_select(0, best.reshape(1))"),
    ("for i in range(n):", {**ITEM, "call": "Tensor.__index__"}, "mask everything beyond `n`"),
    ("if 3 in y:", {**ITEM, "call": "Tensor.__contains__"}, "`(y == 3).any()`"),
    ("if k not in y:", {**ITEM, "call": "Tensor.__contains__"}, "`(y != k).all()`"),
    ("z = torch.add(x, y, alpha=rate)", {**ITEM, "call": ""}, "`a + rate * b`"),
    ("y = x.masked_fill(x > 0, rate)", {**ITEM, "call": ""}, "`torch.where(x > 0, rate, x)`"),
    (
        "inds = torch.nonzero(target == 0)",
        {"operator": "aten::nonzero", "mechanism": "size"},
        "`torch.where(target == 0,",
    ),
    (
        "i = mask.nonzero()",
        {"operator": "aten::nonzero", "mechanism": "size"},
        "`gapless.ops.nonzero(mask, size=n, fill_value=-1)`",
    ),
    ("inds = mask.nonzero()", {"operator": "aten::nonzero", "mechanism": "size"}, "keep the mask `mask`"),
    ("loss = losses[valid].mean()", INDEX, "`torch.where(valid, losses, 0.0).sum() / valid.sum()`"),
    ("loss = e[y != 255].sum()", INDEX, "`torch.where(y != 255, e, 0).sum()`"),
    ("kept = x[mask]", INDEX, "`gapless.ops.compact(x, mask, size=n)`"),
    ("kept = x[mask]", INDEX, "`torch.where(mask, x, other)`"),
    (
        "k = torch.masked_select(x, m)",
        {"operator": "aten::masked_select", "mechanism": "size"},
        "`torch.where(m, x, other)`",
    ),
    ("x[mask] = y[mask]", WRITE, "`x = torch.where(mask, y, x)`"),
    ("x[mask] *= 0.5", WRITE, "`x = torch.where(mask, x * 0.5, x)`"),
    ("x[mask] = values", WRITE, "`x.masked_scatter_(mask, values)`"),
    (
        "u = torch.unique(ids)",
        {"operator": "aten::_unique2", "mechanism": "size"},
        "`gapless.ops.count_unique(ids)`",
    ),
    (
        "r = torch.repeat_interleave(x, n, dim=0)",
        {"operator": "aten::repeat_interleave", "mechanism": "size"},
        "`torch.repeat_interleave(x, n, dim=0, output_size=n)`",
    ),
    (
        "c = torch.bincount(y, minlength=k)",
        {"operator": "aten::bincount", "mechanism": "values"},
        "`gapless.ops.bincount(y, size=k)`",
    ),
    (
        "h = F.one_hot(y)",
        {"operator": "torch.nn.functional.one_hot", "mechanism": "values"},
        "`F.one_hot(y, num_classes=n)`",
    ),
    ("x = x.to(device)", H2D, "`x.to(device, non_blocking=True)` with `x` in pinned memory"),
    ("x = x.to(device)", {**H2D, "detail": "pinned"}, "`x.to(device, non_blocking=True)`"),
    ("x = torch.randn(4, 2).to(device)", H2D, "`torch.randn(4, 2, device=device)`"),
    ("x = torch.zeros(4).cuda()", H2D, '`torch.zeros(4, device="cuda")`'),
    (
        "x, y = x.to(d), y.to(d)  # both",
        H2D,
        "`x, y = x.to(d, non_blocking=True), y.to(d, non_blocking=True)` with",
    ),
    (
        "x, y = x.to(d), y.to(d)",
        {**H2D, "detail": "pinned"},
        "`x, y = x.to(d, non_blocking=True), y.to(d, non_blocking=True)`",
    ),
    ("x = x.to(d, non_blocking=True)", H2D, "`x` must be in pinned memory"),
    ("x = x.to(device)", {**H2D, "batch": True}, "`DataLoader(..., pin_memory=True)` does that for batches"),
    (
        "x = x.to(device)",
        {**H2D, "batch": False},
        "`gapless.ops.to_device` pins what does not come from a DataLoader",
    ),
    ("x = x.to(d, non_blocking=True)", {**H2D, "batch": False}, "or create it on the GPU"),
    ("loss = F.cross_entropy(out[m], y[m])", INDEX, "`F.cross_entropy(out, torch.where(m, y, -100))`"),
    ("loss = F.mse_loss(a.b[m], y[m])", INDEX, "`gapless.ops.mse_loss(a.b, y, m)` is the same loss"),
    (
        "l = F.smooth_l1_loss(p[y > 0], t[y > 0], beta=0.1)",
        INDEX,
        "`gapless.ops.smooth_l1_loss(p, t, y > 0, beta=0.1)`",
    ),
    ("h = x.cpu()", {**H2D, "mechanism": "d2h"}, "`gapless.ops.read_later(value=x)`"),
    ("total += loss.item()  # the loss", ITEM, "`total = total + loss.detach().double()`,"),
    ("x = x.cuda()", {**H2D, "detail": "pinned"}, "`x.cuda(non_blocking=True)`"),
    ("w = torch.tensor(1.0, device=dev)", {**H2D, "detail": "scalar"}, "`torch.full((), 1.0, device=dev)`"),
    ("w = torch.tensor([1, 2], device=dev)", {**H2D, "detail": "scalar"}, "once, before the loop"),
    ("w = x.new_tensor(2.0)", {**H2D, "detail": "scalar"}, "`x.new_full((), 2.0)`"),
    ("outs.append(y.cpu())", {**H2D, "mechanism": "d2h"}, "`outs.append(y)`"),
    ("l = y.type(torch.LongTensor)", {**H2D, "mechanism": "d2h"}, "`y.type(torch.long)`"),
    (
        "b = x[[0, 2]]",
        {**H2D, "operator": "aten::index", "detail": "index"},
        "`torch.tensor([0, 2], device=x.device)`",
    ),
    (
        "x[rows] = 1.0",
        {**H2D, "operator": "aten::_index_put_impl_", "detail": "value"},
        "`x.index_fill_(0, rows, 1.0)`",
    ),
    ("y = head(x[:, [-1], :])", {**H2D, "operator": "aten::index", "detail": "index"}, "`x[:, -1:, :]`"),
    ("y = x[[2]]", {**H2D, "operator": "aten::index", "detail": "index"}, "`x[2:3]`"),
    (
        "y = torch.where(m, torch.tensor(0.0), x)",
        {**H2D, "operator": "aten::where", "detail": "value"},
        "`y = torch.where(m, 0.0, x)`",
    ),
    (
        "a = torch.normal(0, std)",
        {"operator": "aten::normal", "mechanism": "read"},
        "`std * torch.randn_like(std)`",
    ),
    (
        "a = torch.normal(m + 1, std)",
        {"operator": "aten::normal", "mechanism": "read"},
        "`(m + 1) + std * torch.randn_like(std)`",
    ),
    (
        "a += torch.normal(0, scale * 0.1)",
        {"operator": "aten::normal", "mechanism": "read"},
        "`mean + std * torch.randn_like(std)`",
    ),
    ("w = chr(max(32, t))", {**ITEM, "call": "Tensor.__index__"}, "`chr` needs a number on the CPU"),
    (
        "psnr = x / torch.log(torch.Tensor([10.]))",
        {**H2D, "detail": "list", "call": "torch.cuda.FloatTensor"},
        "create `torch.Tensor([10.])` once",
    ),
    (
        "y = torch.cuda.LongTensor(rows)",
        {**H2D, "detail": "list", "call": "torch.cuda.LongTensor"},
        "draw or compute the values on the GPU",
    ),
    ("p = s[~m].view(s.shape[0], -1)", INDEX, "`torch.where(~m, s, other)`"),
    ("x[0, 1] = -1", {**H2D, "operator": "aten::copy_", "detail": "value"}, "`x[0, 1].fill_(-1)`"),
    (
        "l = torch.linalg.cholesky(a)",
        {"operator": "aten::x", "mechanism": "status"},
        "`torch.linalg.cholesky_ex(a).L`",
    ),
]


@pytest.mark.parametrize(("code", "values", "text"), LINES, ids=[line[0] for line in LINES])
def test_the_advice_speaks_of_the_users_line(code: str, values: dict[str, str], text: str) -> None:
    assert text in advice(code, **values)


GENERAL = [
    ("", ITEM),
    ("x = model(", ITEM),
    ("a.item() + b.item() + c.item() + d.item() + e.item()", ITEM),
    ("if step % 10 == 0 and loss > 3:", BOOL),
    ('name = "good" if loss < 1 else "bad"', BOOL),
    ("if any(t > 0 for t in ts):", BOOL),
    ("y = x[a][b]", INDEX),
    ("y = x[:, mask]", INDEX),
    ("x[mask] = f(y[mask])", WRITE),
    ("w = torch.tensor(values, device=dev)", {**H2D, "detail": "scalar"}),
    ("w = torch.tensor(1.0, device=dev, requires_grad=True)", {**H2D, "detail": "scalar"}),
    ("c = torch.bincount(f(x), w)", {"operator": "aten::bincount", "mechanism": "values"}),
    ("l = torch.linalg.cholesky(a, upper=True)", {"operator": "aten::x", "mechanism": "status"}),
    ("x = torch.from_numpy(a).to(device)", H2D),
    ("loss = F.cross_entropy(out[m], y[n], weight=w)", INDEX),
    ("loss = F.mse_loss(out[m], y[n])", INDEX),
    ("loss = F.binary_cross_entropy(out[m], y[m], weight=w[m])", INDEX),
]


@pytest.mark.parametrize(("code", "values"), GENERAL, ids=[line[0] for line in GENERAL])
def test_a_line_that_does_not_tell_gets_the_general_advice(code: str, values: dict[str, str]) -> None:
    wait = site(code, **values)
    named = match_rule(wait)
    assert named.remedy(wait) == named.advice


def test_no_advice_about_the_users_line_where_a_library_waits() -> None:
    where = lib("torchvision/ops/boxes.py", "nms")
    text = advice("keep = boxes[scores > 0.5]", where, **INDEX)
    assert "torchvision/ops/boxes.py:12 (nms)" in text
    assert "scores > 0.5" not in text


def test_in_backward_the_forward_line_is_read() -> None:
    wait = Site(
        operator="aten::_index_put_impl_",
        mechanism="size",
        stack=(lib("torch/autograd/graph.py", "_engine_run_backward"), user("loss.backward()")),
        node="IndexBackward0",
        forward=(user("loss = e[valid].mean()"),),
    )
    assert "`torch.where(valid, e, 0.0).sum() / valid.sum()`" in match_rule(wait).remedy(wait)


def test_what_an_optimizer_reads_of_its_own_is_not_the_learning_rate():
    read = lib("torch/optim/optimizer.py", "_get_value")
    asgd = lib("torch/optim/asgd.py", "_single_tensor_asgd")
    adam = lib("torch/optim/adam.py", "_single_tensor_adam")
    assert "ASGD(..., capturable=True)" in advice("optimizer.step()", read, asgd, **ITEM)
    unknown = advice("optimizer.step()", read, adam, **ITEM)  # of a session that does not say what is read
    assert "keep what the optimizer reads on the CPU" in unknown
    assert "learning rate" not in unknown


def test_a_mask_filled_by_a_library_gets_no_advice_about_alpha():
    filled = {"operator": "aten::masked_fill_", "mechanism": "read"}
    assert "torch.where" in advice("engine.step()", lib("deepspeed/runtime/utils.py", "mask_nan"), **filled)


@pytest.mark.parametrize(
    ("code", "stacked"),
    [
        ("both = torch.tensor([loss, accuracy])", "torch.stack([loss, accuracy])"),
        ("rows.append(torch.FloatTensor(losses).mean())", "torch.stack(losses)"),
        ("x = x.new_tensor([one.sum() for one in parts])", "torch.stack([one.sum() for one in parts])"),
        ("both = torch.tensor([loss, 1.0])", ""),
        ("both = torch.tensor([[loss], [accuracy]])", ""),
        ("both = torch.tensor([loss.item(), accuracy.item()])", ""),
    ],
)
def test_tensors_in_a_list_are_stacked(code: str, stacked: str) -> None:
    remedy = advice(code, **{**ITEM, "call": "torch.tensor"})
    assert (f"`{stacked}` builds the tensor on the GPU" in remedy) == bool(stacked)
    assert stacked or "torch.stack" not in remedy


@pytest.mark.parametrize(
    ("code", "creation"),
    [
        ("x = torch.ones(4).long().to(dev)", "`torch.ones(4, device=dev).long()` is created on the GPU"),
        (
            "m = torch.randint(9, (4,)).float().half().cuda()",
            '`torch.randint(9, (4,), device="cuda").float().half()`',
        ),
        (
            "torch.arange(n * m).view(-1, 1).to(dev),",
            "`torch.arange(n * m, device=dev).view(-1, 1)` is created",
        ),
        ("x = torch.ones(4).sum().to(dev)", ""),
    ],
)
def test_a_factory_takes_the_device_before_it_is_converted(code: str, creation: str) -> None:
    remedy = advice(code, **H2D)
    assert creation in remedy
    assert creation or "device=" not in remedy


def test_a_batch_of_a_class_of_ones_own_is_pinned_by_its_own_method() -> None:
    held = Site(stack=(user("self.mask.to(device)", "NestedTensor.to"),), **H2D)  # type: ignore[arg-type]
    assert match_rule(held).remedy(held).endswith("your own class has a `pin_memory` method that it can call")
    assert "pin_memory`" not in advice("x = x.to(device)", **H2D)


def test_items_of_a_dataset_stay_on_the_host() -> None:
    fetch = lib("torch/utils/data/_utils/fetch.py", "_MapDatasetFetcher.fetch", "data = self.dataset[i]")
    item = user("return self.rows[i].cuda()", "Rows.__getitem__")
    wait = Site(stack=(item, fetch, user("for x in loader:")), **H2D)
    assert "copies the whole batch" in match_rule(wait).remedy(wait)
    assert match_rule(wait).known_change(wait) == "copy batches to the GPU, not items"
    moved = site("x = rows[i].cuda()", **H2D)
    assert "as a whole" not in match_rule(moved).remedy(moved)


def test_only_what_reads_as_the_wait_did_is_named() -> None:
    line = "print('%f %f' % (loss.item(), correct.item() / float(args.batch)))"
    assert "`loss` and `correct` on the GPU" in advice(line, **ITEM)
    assert "args.batch" not in advice(line, **ITEM)
    assert "keep `n`" in advice("print(float(n), loss.item())", **{**ITEM, "call": "Tensor.__float__"})


def test_a_model_makes_its_tensors_on_the_gpu() -> None:
    wait = Site(stack=(user("iden = iden.cuda()", "STN.forward"), user("main()", "<module>")), **H2D)
    assert "buffer of the module" in match_rule(wait).remedy(wait)
    assert "buffer of the module" not in advice("iden = iden.cuda()", **H2D)


def hooked(*ran: SourceLine) -> Site:
    """A read in backward below `ran`; the node was made by ``library.train(x)``."""
    engine = lib("torch/autograd/graph.py", "_engine_run_backward")
    below = lib("somelib/infer.py", "train", "total = logs.sum()")
    return Site(
        stack=(*ran, engine, lib("torch/_tensor.py", "Tensor.backward"), below, user("library.train(x)")),
        node="SumBackward0",
        forward=(below, user("library.train(x)")),
        **BOOL,  # type: ignore[arg-type]
    )


def test_in_backward_a_librarys_hook_is_what_reads() -> None:
    hook = lib("somelib/util.py", "warn_if_nan", "if torch_isnan(value):")
    wait = hooked(THIN, hook)
    assert wait.line is not None
    assert (wait.line.code, wait.deciding_frame) == ("library.train(x)", hook)
    assert "somelib syncs here, at somelib/util.py:12 (warn_if_nan)" in match_rule(wait).remedy(wait)


def test_in_backward_a_line_that_only_passes_on_leaves_it_to_the_forward_call() -> None:
    for wait in (hooked(), hooked(THIN)):
        assert wait.deciding_frame is not None
        assert wait.deciding_frame.function == "train"


def test_a_library_that_asks_for_the_scale_is_not_the_users_to_move() -> None:
    frames = (lib("torch/amp/grad_scaler.py", "GradScaler.get_scale"),)
    assert "read the scale only where it is logged" in advice("log(scaler.get_scale())", *frames, **ITEM)
    remedy = advice("learn.fit()", *frames, lib("somelib/fp16.py", "after_step"), **ITEM)
    assert remedy.startswith(
        "somelib reads the scale at somelib/fp16.py:12 (after_step): autocast to bfloat16"
    )


def test_what_is_known_of_pyro() -> None:
    checks = site("svi.step(x)", lib("pyro/util.py", "warn_if_nan", "if torch_isnan(value):"), **BOOL)
    assert match_rule(checks).change_at(checks) == "`pyro.enable_validation(False)`"
    assert "turns off the checks of every sample site" in match_rule(checks).remedy(checks)
    number = site("svi.step(x)", lib("pyro/infer/util.py", "torch_item", "return x.item()"), **ITEM)
    assert "`Trace_ELBO().differentiable_loss(model, guide, ...)`" in match_rule(number).remedy(number)
