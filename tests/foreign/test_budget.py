"""Whatever 190 KB of a stranger's job unfold to, its reading ends within one budget, and within little memory."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.errors import UsageError
from trimtab.foreign import budget
from trimtab.foreign.budget import MOST_CHARACTERS, MOST_STEPS, Budget
from trimtab.foreign.read import Source, read, read_objects
from trimtab.foreign.shell import walk

SIXTH = MOST_CHARACTERS // 6
"""The budget of these tests, for the sake of their time: memory that nobody has paid for shows as well with it."""
PEAK_BYTES = 24 << 20
DOUBLED = "X=" + "a" * 1000 + "\n" + 'X="$X$X"\n' * 9
ARRAY = "A=(" + "b " * 9000 + ")\n"


def turned(body: str) -> str:
    """4,096 times."""
    turns = " ".join(map(str, range(16)))
    return "".join(f"for {name} in {turns}; do " for name in "ijk") + body + "\n" + "done;" * 3


def called(body: str) -> str:
    return f"f() {{ {body}\n}}\n" + turned("f")


HOSTILE = {
    "a word of long texts": DOUBLED + 'run "' + "$X" * 50_000 + '"',
    "a word of long lists": ARRAY + "run " + '"${A[@]}"' * 10_000,
    "a here-document of long texts": DOUBLED + "cat > f <<EOF\n" + "$X" * 50_000 + "\nEOF\n",
    "what letters are replaced by": "X=" + "a" * 400 + "\nR=" + "b" * 100_000 + "\n" + "run ${X//a/$R}\n" * 3000,
    "lists of new names": turned("IFS=, read -a \"A$i$j$k\" <<'EOF'\n" + "a," * 75_000 + "\nEOF"),
    "an array that is taken apart again": called("A=(" + "b " * 50_000 + ")"),
    "a text that is passed over again": called("A=${Z:+" + "b" * 100_000 + "}"),
    "a condition of many words": called("[ " + "! " * 700 + "b " * 50_000 + "]"),
    "long patterns": "V=" + "*a?" * 30_000 + "\nX=" + "a" * 390 + "\n" + "Y=${X%%$V}\n" * 3000,
    "options of a shell": called("bash " + "- " * 60_000),
    "scripts that are submitted again": turned("sbatch <<'EOF'\n" + "#SBATCH --nodes=2\n" * 8000 + "\nEOF"),
    "runs that all differ": turned("torchrun train.py --seq-length $i$j --train-iters 1$i$j$k;"),
    "a config that is named again": "cat > c.yaml <<'EOF'\n"
    + "".join(f"k{n}: {n}\n" for n in range(8000))
    + "EOF\n"
    + "python train.py --config c.yaml\n" * 2000,
    "loops over long lists": ARRAY + "while x; do y; done\n" * 5000,
    "long sums": called("run $((" + "1+" * 990 + "1))"),
    "an endless name": "a" * 95_000 + "=()" * 30_000,
    "vague programs": "#" + "b" * 100_000 + "\n" + "python train.py\n" * 5000,
    "arguments that are shifted": "set -- " + "b " * 50_000 + "\n" + "shift\n" * 9000,
    "all arguments": "set -- " + "b " * 30_000 + "\nrun " + "$@" * 30_000,
    "configs in every environment": "".join(f"export A{n}=x.yaml\n" for n in range(3000)) + "run\n" * 9000,
    "ways with many variables": "".join(f"A{n}=1\n" for n in range(3000)) + "if x; then A1=2; else A1=3; fi\n" * 5000,
}


def job(*containers: dict[str, Any]) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"name": "a", **each} for each in containers]}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x", "namespace": "t"}, "spec": spec}


LONG: list[dict[str, str]] = [{"name": "A", "value": "a" * 9000}]
OBJECTS = {
    "variables of variables": job(
        {"command": ["train"], "env": LONG + [{"name": f"B{n}", "value": "$(A)" * 4000} for n in range(10)]}
    ),
    "arguments of variables": job({"command": ["train"], "args": ["$(A)" * 4000] * 10, "env": LONG}),
    "many containers, a little each": job(*[{"command": ["bash", "-c", DOUBLED]}] * 300),
}


def peak(source: Source | dict[str, Any]) -> int:
    """Bytes at the most while it is read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "MOST_CHARACTERS", SIXTH)
        tracemalloc.start()
        try:
            with suppress(UsageError):  # read or refused: what it takes is measured
                read(source) if isinstance(source, Source) else read_objects([source], "it")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("name", [*HOSTILE, *OBJECTS])
def test_what_unfolds_is_paid_for_before_it_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Budget] = []

    def begin() -> Budget:
        begun.append(Budget())
        return begun[-1]

    monkeypatch.setattr(budget, "Budget", begin)
    assert peak(Source("x.sh", HOSTILE[name]) if name in HOSTILE else OBJECTS[name]) < PEAK_BYTES
    assert len(begun) == 1, "something nested has begun with a fresh budget"
    assert begun[0].steps <= MOST_STEPS + 1000


FRAGMENTS = st.sampled_from([DOUBLED, ARRAY, "X=$X$X\n", 'A+=("${A[@]}")\n', 'run "$X${A[*]}"\n', "Y=${X//a/$X}\n"])
AROUND = st.sampled_from([turned, called, lambda text: f"bash <<EOF\n{text}\nEOF\n", lambda text: f"eval '{text}'\n"])


@settings(max_examples=25)
@given(st.lists(FRAGMENTS, min_size=1, max_size=6), st.lists(AROUND, max_size=3))
def test_however_it_is_put_together(fragments: list[str], around: list[Any]) -> None:
    text = "".join(fragments)
    for wrap in around:
        text = wrap(text)
    assert peak(Source("x.sh", text)) < PEAK_BYTES


def test_what_was_too_long_is_named() -> None:
    with pytest.raises(UsageError, match="the environment and arguments of its containers unfold to more"):
        read_objects([OBJECTS["variables of variables"]], "it")
    with pytest.raises(UsageError, match="its variables unfold to more"):
        read(Source("x.sh", HOSTILE["a here-document of long texts"]))
    with pytest.raises(UsageError, match=r"c\.yaml and the like unfold to more"):
        read(Source("x.sh", HOSTILE["a config that is named again"]))


def test_one_budget_is_for_all_that_is_read_within_it() -> None:
    with budget.reading() as shared:
        walk("run $X")
        once = shared.characters
        walk("run $X")
    assert shared.characters == 2 * once > 0
