"""Laws of what is written in scripts put together by chance: it prints the same and waits less."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fixes.rewriting import HEAD, rewrite
from hypothesis import given, settings
from hypothesis import strategies as st

READS = (
    "train().item()", "float(train().detach())", "(train() * 2).item()", "train().view(1).item()",
    "train().detach().cpu().item()", "int((x > i).sum())", "(x > i).any().item()", "train().double().item()",
)  # fmt: skip
USES = (
    "total += {r}", "total -= {r} * 2", "total = total + {r} / len(x)", "größe += {r}; count += 1",
    "total += ({r}  # ) in a comment\n    )", "kept.append({r})", "value = {r}\nvalue += 1", "late = {r}",
    "peak = max(peak, {r})", "print({r}, f'{{{r}}}')", "pair = [{r} for _ in range(2)]; total += sum(pair)",
    "total += (lambda number: number)({r})", "if (w := {r}) > 100: break", "print(*[{r}], **{{'end': ' '}})",
    "print({{'a': {r}, 'b': [{r}]}})", "total += {r} if i else {r}", "mean = 0.9 * mean + 0.1 * {r}",
    "total += torch.tensor(0.5, device='cuda').item() + {r}", "total += {r} \\\n    - 1",
    "y = train() * {r}; total += y.item()",
)  # fmt: skip
SHOWS = (
    "",
    "if i % 2 == 0:\n    print(total, kept)",
    "if i % 2 == 1:\n    print(f'{total=}')\n    total = 0.0",
)
PLACES = (
    "{names}\n{loop}\nprint(total, größe, count, kept, peak, mean)\n",
    "def run():\n    {names}\n{deeper}\n    return total, größe, kept, peak, mean\nprint(run(), run())\n",
    "def run():\n    {names}\n{deeper}\n    yield total, kept\nprint(*run())\n",
    "import functools\n@functools.cache\ndef run():\n    {names}\n{deeper}\n    return kept\nprint(run())\n",
)
NAMES = "total, größe, count, kept, peak, mean, late = 0.0, 0, 0, [], 0.0, 0.0, 0"


def indent(text: str, depth: int = 1) -> str:
    return "\n".join(f"{'    ' * depth}{line}" for line in text.splitlines())


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """A training loop that reads numbers in several ways, in a function or not, with tabs and line ends."""
    uses = draw(st.lists(st.tuples(st.sampled_from(USES), st.sampled_from(READS)), min_size=1, max_size=3))
    body = "\n".join([*(use.format(r=read) for use, read in uses), draw(st.sampled_from(SHOWS))]).rstrip()
    loop = f"for i in range(4):  # steps\n{indent(body)}"
    place = draw(st.sampled_from(PLACES))
    text = HEAD + place.format(names=NAMES, loop=loop, deeper=indent(loop))
    text = text.replace("    ", "\t") if draw(st.booleans()) else text
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@settings(max_examples=25)
@given(scripts())
def test_what_is_written_does_the_same_with_fewer_waits(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rewriting = rewrite(Path(folder), text, head="", levels=("exact", "rounding"))
    assert rewriting.after.printed == rewriting.before.printed, rewriting.text
    before, after = rewriting.waits
    assert after < before or rewriting.text == text, rewriting.text
    assert rewriting.text.count("\r\n") in (0, rewriting.text.count("\n"))
    lines = iter(rewriting.text.splitlines())
    untouched = [line for line in text.splitlines() if not any(word in line for word in ("train()", "x > i"))]
    assert all(line in lines for line in untouched), rewriting.text
