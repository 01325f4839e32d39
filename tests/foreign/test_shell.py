"""Scripts are followed as far as their text tells, whatever is in them, and never run."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from trimtab.foreign.budget import TooLong
from trimtab.foreign.expansion import readable
from trimtab.foreign.shell import walk


def commands(script: str, **files: str) -> list[str]:
    return [readable(" ".join(command.words)) for command in walk(script, {}, files).commands]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("run ${X:-4} ${Y:=5} $Y", ["run 4 5 5"]),
        ("X=2; run $X ${X} ${X:+yes} ${Z:+no}", ["run 2 2 yes"]),
        ("A=6 B=7\nrun $((A * B)) $(( (A+1)/2 ))", ["run 42 3"]),
        ("N=$((2**10)); run $N $(expr $N / 8)", ["run 1024 128"]),
        ("run a \\\n  b \\\n  c", ["run a b c"]),
        ('ARGS="--a 1"; ARGS+=" --b 2"; run $ARGS', ["run --a 1 --b 2"]),
        ('A=(x "y z"); A+=(w); run "${A[@]}" ${#A[@]}', ["run x y z w 3"]),
        ("X=bF16; run ${X,,} ${X^^} ${X/F/f} ${X%16}", ["run bf16 BF16 bf16 bF"]),
        ("T=3_000; run ${T//_}", ["run 3000"]),
        ("f() { run $1; }; f 7", ["run 7"]),
        ("function f { run $2; }\nf 7 8", ["run 8"]),
        ("for i in 1 2; do run $i; done", ["run 1", "run 2"]),
        ("if [ 1 -eq 1 ]; then run a; else run b; fi", ["run a"]),
        ("if [[ x == y* ]]; then run a; elif [ -z '' ]; then run b; fi", ["run b"]),
        ("case abc in a*) run a;; *) run b;; esac", ["run a"]),
        ("run a # --not this\n# nor that", ["run a"]),
        ("X=1\nsrun bash -c \"run $X \\$Y '$X'\"", ["srun run 1 $(Y) 1"]),
        ("CMD='run --x 1'\nsrun $CMD", ["srun run --x 1"]),
        ("bash <<'EOF'\nrun $X\nEOF", ["run $(X)"]),
        ("X=3\nsbatch <<EOF\n#SBATCH -N 2\nrun $X\nEOF", ["sbatch run 3"]),
        ("cat > go.sh <<EOF\nrun 5\nEOF\nsrun bash go.sh", ["srun run 5"]),
        ('C=$(cat <<EOF\nrun 1 2\nEOF\n)\nbash -c "$C"', ["run 1 2"]),
        ("IFS=, read -r A B <<< '2,4'; run $A $B", ["run 2 4"]),
        ("set -- 1 2; run $2; shift; run $1", ["run 2", "run 2"]),
        ("exit 0\nrun a", []),
        ('[ -z "${TOKEN:-}" ] && exit 1\nrun a', ["run a"]),
        ('[ -n "$T" ] || { echo no; exit 1; }\nrun a', ["run a"]),
        ("run <PATH TO DATA> --x 1", ["run PLACEHOLDER --x 1"]),
        ('eval "run 1"; exec run 2; run 3', ["run 1", "run 2"]),
        ("run > out.log 2>&1 &\nwait", ["run", "wait"]),
        ("run `date` $(hostname)", ["run $(UNKNOWN) $(UNKNOWN)"]),
    ],
)
def test_what_a_script_would_run(script: str, found: list[str]) -> None:
    assert commands(script) == found


def test_a_condition_that_nobody_knows_is_followed_both_ways() -> None:
    script = 'X=1; Y=1\nif [ "$GPU" = h100 ]; then X=2; Y=3; run a; else X=2; run b; fi\nrun $X $Y'
    assert commands(script) == ["run a", "run b", "run 2 $(Y)"]


def test_arguments_that_may_be_added_leave_those_that_are_there() -> None:
    assert commands('A=(--x 1)\nif [ -f y ]; then A+=(--y 2); fi\nrun "${A[@]}"') == ["run --x 1"]


def test_a_script_beside_it_is_followed() -> None:
    files = {"train.sh": "run $1 ${LR:-3}", "env.sh": "LR=4"}
    assert commands("source ./env.sh\nsrun ./scripts/train.sh 9", **files) == ["srun run 9 4"]


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    walk(f"touch {mark}; X=$(touch {mark}); `touch {mark}`; eval 'touch {mark}'; echo a > {mark}")
    assert not mark.exists()


@pytest.mark.parametrize(
    "script",
    [
        "X=aaaaaaaaaa\n" + 'X="$X$X"\n' * 60 + "run $X",
        "A=(1 2)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60,
        "f() { f; f; }\nf",
        "f() { g; g; }\n" + "".join(f"g{n}() {{ g{n + 1}; g{n + 1}; }}\n" for n in range(40)) + "g0",
        "while true; do " * 60 + "run" + "; done" * 60,
        "$(" * 5000,
        '"${X:-' * 3000,
        "((" * 3000,
        "if x; then " * 3000,
        "a() " * 5000,
        "X=" + "a" * 390 + "\n" + "Y=${X%%*a*a*a*a*a*a*a*a*b}\n" * 3000,
        "bash -c 'bash -c \"bash -c run\"'\n" * 3000,
        "eval eval eval " * 2000,
        "run $((" + "9**9**" * 400 + "9))",
        "x" * 500_000,
        "".join(f"for a in {' '.join(map(str, range(16)))}; do " for _ in range(10)) + "run" + "; done" * 10,
        "case $X in " + "a) b;; " * 20_000 + "esac",
        "<<A <<B <<C\n" * 2000,
        "srun " + "a " * 20_000 + "bash -c '" + "x;" * 9000 + "'",
        "".join(f"export A{n}=1\n" for n in range(5000)) + "X=1 run\n" * 5000,
        "".join(f"export A{n}=1\n" for n in range(9000)) + "run\n" * 9000,
        "#SBATCH --nodes=2\n" * 20_000,
    ],
)
def test_hostile_scripts_cost_little(script: str) -> None:
    begun = time.thread_time()
    with suppress(TooLong):
        assert sum(len(word) for command in walk(script).commands for word in command.words) < 20_000_000
    assert time.thread_time() - begun < 5
