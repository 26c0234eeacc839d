"""GAP520."""

from __future__ import annotations

from gapless.model.graph_fault import GraphFault
from gapless.rules import match_rule
from gapless.rules._graphs import FaultRule

_OUTSIDE = "move it before or after the capture"
_TIMED = "DistributedDataParallel's timing"
_ASIDE = "on a stream that is not captured"
_REMEDIES = (
    (
        _TIMED,
        "run at least eleven iterations before the capture: DistributedDataParallel times the first ten "
        "and waits for their events",
    ),
    (
        "CUDA graphs must be captured",
        "capture on a side stream: `with torch.cuda.graph(g):` uses one automatically",
    ),
    (
        "Capture must end",
        "call `capture_end` on the stream of `capture_begin`, or use `with torch.cuda.graph(g):`",
    ),
    ("This CUDAGraph instance", "capture into a new `torch.cuda.CUDAGraph()`, or call `g.reset()` before"),
    ("Called CUDAGraph::replay", "capture before `g.replay()`: `with torch.cuda.graph(g):`"),
    ("Cannot prepare for replay", "replay graphs one after the other, outside captures"),
    ("Attempt to increase offset", "call `g.register_generator_state(generator)` before the capture"),
    (
        "Cannot call CUDAGeneratorImpl",
        "seed, save and restore random states outside the capture; for checkpointing without dropout pass "
        "`preserve_rng_state=False`",
    ),
    (
        "Please ensure to utilize",
        "use `generator.graphsafe_set_state(...)`, or set the state outside the capture",
    ),
    (
        "CUDAGeneratorImpl::set_current_seed",
        "seed, and restore states of another seed, outside the capture",
    ),
    ("Cannot construct a new", "create generators before the capture"),
    (
        "has a stale reference",
        "run the warm-up on a side stream (`with torch.cuda.stream(s):`), wrap the module with "
        "DistributedDataParallel there as well, and `del loss` before the capture",
    ),
    ("Attempting CUDA graph capture", "create the optimizer with `capturable=True`"),
    (
        "capturing stream has unjoined work",
        "let the captured stream wait for the side stream before the capture ends: "
        "`torch.cuda.current_stream().wait_stream(side)`",
    ),
    (
        "dependency created on uncaptured",
        "wait for that stream before the capture begins, or fork it inside: `side.wait_stream("
        "torch.cuda.current_stream())`",
    ),
    (
        "operation would make the legacy",
        "do not use the default stream in a capture: it can wait for `g.replay()` instead",
    ),
    ("operation not permitted on an event", "synchronize after `g.replay()`, with an event recorded there"),
    ("the operation cannot be performed", "end one capture before the next begins"),
    (
        _ASIDE,
        "fork that stream from the captured one, `side.wait_stream(torch.cuda.current_stream())`, and join "
        "it before the capture ends; or move the work out of the capture",
    ),
    ("operation not permitted when stream is capturing", _OUTSIDE),
)
_CHANGES = (
    (_TIMED, "eleven iterations before the capture"),
    (_ASIDE, "fork the side stream from the captured one"),
    ("has a stale reference", "warm up on a side stream"),
    ("capturing stream has unjoined work", "join the side stream before the capture ends"),
    ("Attempting CUDA graph capture", "capturable=True"),
    ("CUDA graphs must be captured", "capture on a side stream"),
)


class CaptureRefused(FaultRule):
    """CUDA or PyTorch refuses something inside the capture of a CUDA graph.

    ## What waits
    Nothing: a capture records launches and runs nothing, so the CPU cannot read a value, wait for the GPU, or
    ask whether it is done. Any of these ends the capture with an error.

    ## Why it costs
    On a GPU the script ends there, with an error that does not say which line to change.

    ## Example
    ```python
    model = torch.nn.Linear(8, 8).cuda()
    x = torch.randn(4, 8, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = model(x)
        peak = y.max().item()
    ```

    ## Use instead
    ```python
    model = torch.nn.Linear(8, 8).cuda()
    x = torch.randn(4, 8, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = model(x)
        peak = y.max()
    g.replay()
    print(peak.item())  # after the replay the CPU may wait
    ```

    ## When it is fine
    Never inside a capture. Syncs belong between replays."""

    code = "GAP520"
    name = "capture-refused"
    kinds = ("refused",)
    advice = "move syncs, queries and seeding out of the capture: before it, or after `g.replay()`"
    change = "move it out of the capture"

    def evidence(self, fault: GraphFault) -> tuple[str, ...]:
        return (f'{fault.what}: "{fault.said.rstrip(".")}"',)

    def remedy(self, fault: GraphFault) -> str:
        if fault.site is not None and fault.site.mechanism not in ("none", "explicit"):
            rule = match_rule(fault.site)
            return f"{rule.code}: {rule.remedy(fault.site)}; or {_OUTSIDE}"
        return next((remedy for begin, remedy in _REMEDIES if _is_case(fault, begin)), self.advice)

    def known_change(self, fault: GraphFault) -> str:
        return next((change for begin, change in _CHANGES if _is_case(fault, begin)), "")


def _is_case(fault: GraphFault, begin: str) -> bool:
    return fault.said.startswith(begin) or begin in fault.what
