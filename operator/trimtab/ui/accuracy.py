"""The tables of `trimtab perf`: how far predictions are off, by source and GPU, beside what others reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rich.table import Table

from trimtab.ui.terminal import Text
from trimtab_policy.perf.accuracy import APART, PEERS, Accuracy, Errors, Overall, Ranking


def errors(title: str, found: Mapping[str, Errors], bias: Mapping[str, float]) -> Table:
    """One line a source or GPU type, most rows first."""
    table = _table(title, "ROWS", "MAPE", "MEDIAN", "IN 80 %", "BIAS")
    for name, row in sorted(found.items(), key=lambda item: -item[1].n):
        table.add_row(
            name,
            str(row.n),
            _percent(row.mape),
            _percent(row.median_ape),
            f"{row.coverage80:.0%}",
            f"{bias[name]:+.1%}",
        )
    return table


def summary(overall: Overall, predicted_by: str) -> Text:
    """All rows in a sentence, and what predicted them."""
    return Text.assemble(
        (f"{overall.macro_mape:.1%}", "bold"),
        f" mean over sources ({APART} apart), {overall.mape:.1%} over all {overall.n:,} rows, ",
        f"median {overall.median_ape:.1%}; ",
        f"{overall.coverage80:.0%} inside their 80 % interval. Predicted by {predicted_by}. ",
        "How runs fare that no constant was fitted on, --cross-validate says.",
    )


def ranking(found: Mapping[str, Ranking]) -> Table:
    """One line a source that measured several plans of one job."""
    table = _table("CHOICE OF PLANS", "JOBS", "REGRET", "SPEARMAN")
    for name, row in sorted(found.items(), key=lambda item: -item[1].groups):
        table.add_row(name, str(row.groups), _percent(row.mean_regret), f"{row.spearman:.2f}")
    return table


def peers() -> Table:
    """What public tools reach on other rows of such tables."""
    sources = list(dict.fromkeys(source for peer in PEERS for source in peer.ranking))
    table = _table("OTHERS, ON OTHER ROWS", "MAPE OF 275", "OF 724", *(f"REGRET {source}" for source in sources))
    for peer in PEERS:
        regrets = (peer.ranking.get(source) for source in sources)
        said = (f"{_percent(each[0])} (ρ {each[1]:.2f})" if each else "-" for each in regrets)
        table.add_row(peer.name, _percent(peer.mape), _percent(peer.mape_common), *said)
    return table


def skipped(reasons: Mapping[str, str]) -> Table:
    """Why rows were left out, and how many for each reason."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("SKIPPED", justify="right")
    table.add_column("WHY", overflow="fold")
    for reason, count in Counter(reasons.values()).most_common():
        table.add_row(str(count), reason)
    return table


def worst(rows: Iterable[tuple[str, str, str, float, float]]) -> Table:
    """Rows with the largest errors: (name, source, GPU type, measured seconds, predicted seconds)."""
    table = _table("WORST ROWS", "SOURCE", "GPU", "MEASURED", "PREDICTED", "ERROR", left=2)
    for name, source, gpu, measured, predicted in rows:
        times = (f"{measured:.3g} s", f"{predicted:.3g} s")
        table.add_row(name, source, gpu, *times, f"{predicted / measured - 1:+.0%}")
    return table


def before_and_after(reports: Mapping[str, Accuracy]) -> Table:
    """The same rows judged under several sets of constants: name -> accuracy."""
    table = _table("CONSTANTS", "ROWS", "MAPE", "MEDIAN", "IN 80 %", "OVER SOURCES")
    for name, report in reports.items():
        row = report.overall
        figures = (_percent(row.mape), _percent(row.median_ape), f"{row.coverage80:.0%}", _percent(row.macro_mape))
        table.add_row(name, str(row.n), *figures)
    return table


def _table(first: str, *others: str, left: int = 0) -> Table:
    """Names in the first column, figures in the others; the first `left` of those hold names as well."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for number, name in enumerate(others):
        table.add_column(name, justify="left" if number < left else "right", overflow="fold")
    return table


def _percent(fraction: float) -> str:
    return f"{fraction:.1%}"
