"""The chosen plan taken apart: what is on the GPU, and what the host keeps of it."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console

from trimtab.ui.choices import TypeChoice, overview
from trimtab_policy import catalog
from trimtab_policy.perf import breakdown, plans
from trimtab_policy.specs import Adapters, Offload, ParallelPlan, TrainingSpec

LLAMA, H100, PLAN = catalog.model("llama2-7b"), catalog.gpu("H100-SXM5-80GB"), ParallelPlan(data=8, zero_stage=3)
WHOLE = TrainingSpec(sequence_length=4096, global_batch_size=64, steps=1)


def shown(training: TrainingSpec) -> str:
    apart = breakdown.breakdown(LLAMA, training, PLAN, H100, 8)
    choice = TypeChoice(H100.name, 8, PLAN, plans.predict(LLAMA, training, PLAN, H100, 8), apart, chosen=True)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(overview([choice], "USD"))
    return captured.get()


def test_what_the_host_keeps_is_told_where_it_keeps_something() -> None:
    tuned = replace(WHOLE, adapters=Adapters(16), offload=Offload(activations=True))
    assert "frozen" in shown(tuned)
    assert "On the host: " in shown(tuned)
    assert "frozen" not in shown(WHOLE)
    assert "On the host: " not in shown(WHOLE)
