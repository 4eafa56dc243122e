"""Writes docs/accuracy.md: published results of real servers beside what is simulated, misses and hits.

`python docs/accuracy.py` fits and tests constants fold by fold, which takes an hour; `make validate` runs it.
With `--as-shipped` it leaves that out, and says so; `kneesim validate` scores the same table.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import accuracy_runs as runs
import numpy as np
from worked_example import table

from sim.validation.accuracy_text import HEADER, WORDS, cells
from sim.validation.folds import OTHER_CARD, OTHER_MODEL, TWO_FOLD
from sim.validation.peers import PEERS
from sim.validation.score import METRICS, Row, grouped, summary_of

PAGE = Path(__file__).with_name("accuracy.md")
_FOLLOWS = f"Written by `docs/accuracy.py` from `{runs.POINTS.relative_to(PAGE.parents[1])}`"
_WORST = 4
_INTRODUCTION = f"""# Accuracy

{_FOLLOWS}: what others measured of real servers, each row with its source. Errors are predicted over
measured less 1; *median* and *p90* are of the absolute error, *bias* is the signed median. A row counts
where its source tells enough of the set-up (grades A to B+) and nothing is known that makes it another
measurement than it seems; those that do not count stand at the end, with their errors and the reason.

Kernel times come from measured kernels. What kernels do not show, the host's time a step and a sequence, the
front end's a request, the launch of eager layers, and the share of the kernels' rates that a card reaches,
is a constant: of an engine version, or of a card under it. No row has one of its own.
"""


def summary_table(rows: Iterable[Row], by: str = "") -> str:
    """A line a metric, or a line a group and metric."""
    if not by:
        found = summary_of(rows)
        return table(["", *HEADER], [[WORDS[metric], *cells(found[metric])] for metric in found])
    lines = []
    for name, mine in grouped(rows, by).items():
        for metric, errors in summary_of(mine).items():
            lines.append([name, WORDS[metric], *cells(errors)])
    return table([by, "", *HEADER], lines)


def two_fold() -> str:
    """Constants fitted on one half of an engine version's set-ups, tested on the other, both ways."""
    folded = runs.cross_validated(TWO_FOLD)
    versions = {name.partition(" without ")[0] for name in folded.fits}
    return f"""## On set-ups that the constants have not seen

Every second set-up of an engine version is left out, constants are fitted on the others, and the other way
round. {len(versions)} engine versions have four set-ups or more: {len(folded.fits)} fits, in which
{folded.count} constants were told apart from what was believed before.

{summary_table(folded.rows)}

{summary_table(folded.rows, "engine version")}

### Beside what others publish

{peers(folded.rows, "set-ups not seen")}"""


def peers(rows: Sequence[Row], how: str) -> str:
    """The published errors of other tools beside ours; on other servers each, so only the order tells."""
    found = summary_of(rows)
    lines = [
        ["Kneesim, this page", _median(found, "e2e_ms"), _median(found, "ttft_ms"), _median(found, "tpot_ms"),
         how],
        *([peer.name, peer.e2e, peer.ttft, peer.tpot, peer.says] for peer in PEERS),
    ]  # fmt: skip
    return table(["median error", "E2E", "TTFT", "TPOT", ""], lines)


def _median(found: Mapping[str, Any], metric: str) -> str:
    return f"{found[metric]['median_abs_pct']:.1f}" if metric in found else ""


def tested(folds: bool) -> tuple[list[Row], str]:
    """The comparisons that sections rest on, and what constants they were made with."""
    if folds:
        return runs.cross_validated(TWO_FOLD).rows, "with the constants of the two-fold test"
    return runs.as_shipped().counted, "as shipped"


def transfer() -> str:
    """Cards, or models, that no row of the fit has: every second one is left out, both ways."""
    parts = []
    for kind, words in ((OTHER_CARD, "Cards"), (OTHER_MODEL, "Models")):
        folded = runs.cross_validated(kind)
        parts.append(
            f"### {words} left out\n\n{summary_table(folded.rows)}\n\n{_left_out(folded.rows, kind)}"
        )
    return "## On a card or a model that the constants have not seen\n\n" + "\n\n".join(parts)


def _left_out(rows: Sequence[Row], kind: str) -> str:
    by = "gpu" if kind == OTHER_CARD else "model"
    lines = []
    for (version, name), mine in _by_pair(rows, by).items():
        for metric, errors in summary_of(mine).items():
            lines.append([version, name, WORDS[metric], *cells(errors)])
    return table(["engine version", "left out", "", *HEADER], lines)


def _by_pair(rows: Iterable[Row], by: str) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.group["engine version"], row.group[by]), []).append(row)
    return dict(sorted(found.items()))


def shipped() -> str:
    """Against the files that come with Kneesim, nothing fitted here."""
    validation = runs.as_shipped()
    return f"""## As shipped

The same rows with the engine files and profiles that come with Kneesim
(`kneesim validate {runs.POINTS.relative_to(PAGE.parents[1])}`), {validation.parameters["count"]} constants of
{len(validation.parameters["engines"])} engines and {len(validation.parameters["cards"])} cards. Engine
files rest in part on these rows (their provenance says which), so this tells less of other servers.

{summary_table(validation.counted)}

Cards whose kernels were measured, and cards whose kernels are estimated from the nearest measured card:

{summary_table(validation.counted, "kernels")}"""


def by_version() -> str:
    """As shipped, by engine version, beside the published errors of others."""
    rows = runs.as_shipped().counted
    return f"""## By engine version, as shipped

{summary_table(rows, "engine version")}

### Beside what others publish

{peers(rows, "as shipped")}"""


def loads(folds: bool) -> str:
    """Capacity and knee of series with four loads or more."""
    found, how = tested(folds)
    rows = [row for row in found if row.metric in ("capacity", "knee")]
    lines = [_line(row) for row in sorted(rows, key=lambda row: (row.metric, row.id))]
    return f"""## Along the load axis

Series of four loads or more, {how}. Capacity is the largest output
throughput; the knee is the load at which TPOT is half way, in the logarithm, between its values at the
lightest and the heaviest load.

{summary_table(rows)}

{table(["series", "", "measured", "predicted", "%"], lines)}"""


def _line(row: Row) -> list[str]:
    values = (f"{row.measured:,.4g}", f"{row.predicted:,.4g}", f"{row.error_pct:+.1f}")
    return [row.id, WORDS[row.metric], *values]


def of_set(title: str, names: Sequence[str], words: str) -> str:
    """All rows of some sets as shipped, those that do not count included."""
    rows = [row for row in runs.as_shipped().rows if row.group["set"] in names]
    lines = [[*_line(row), row.unfit or ("" if row.counts else "grade below B+")] for row in rows]
    shown = table(["", "", "measured", "predicted", "%", "not counted"], lines)
    return f"## {title}\n\n{words}\n\n{shown}"


def tensorrt(folds: bool) -> str:
    """The TensorRT-LLM tables by version, card and model."""
    found, how = tested(folds)
    rows = [row for row in found if row.group["set"] in ("trt10", "trt011")]
    pairs = _by_pair(rows, "gpu")
    lines = [
        [version, gpu, WORDS[metric], *cells(errors)]
        for (version, gpu), mine in pairs.items()
        for metric, errors in summary_of(mine).items()
    ]
    return f"""## The TensorRT-LLM tables

Offline throughput of versions 0.11 and 1.0 as NVIDIA publishes it, {how}.

{table(["engine version", "gpu", "", *HEADER], lines)}

{summary_table(rows, "model")}"""


def rtx() -> str:
    """The run on an RTX 4090, request by request and second by second."""
    run = runs.rtx_run()
    lines = []
    for name in ("TTFT", "TPOT", "E2E"):
        errors = runs.errors_pct(run, name)
        medians = (np.median(run.measured[name]), np.median(run.predicted[name]))
        lines.append([name, *(f"{median:.4g} s" for median in medians),
                      f"{np.median(np.abs(errors)):.1f}", f"{np.percentile(np.abs(errors), 90):.1f}",
                      f"{np.median(errors):+.1f}"])  # fmt: skip
    seconds = [_gauge_line(run, name) for name in ("running", "waiting")]
    return f"""## One server, request by request

300 requests on vLLM 0.19 with Llama-3.1-8B on an RTX 4090, lengths and arrivals as they were
(`tests/data/{runs.REQUESTS.name}`), the KV cache as its log states it, the card's kernels estimated from
another's. Errors are of each request:

{table(["", "median measured", "median predicted", "median %", "p90 %", "bias %"], lines)}

Every second of the run:

{table(["requests", "mean measured", "mean predicted", "largest measured", "largest predicted",
        "mean difference"], seconds)}

{run.preemptions} preemptions are simulated; how many there were was not recorded."""  # fmt: skip


def _gauge_line(run: runs.Recorded, name: str) -> list[str]:
    measured, predicted = run.measured[name], run.predicted[name]
    values = (measured.mean(), predicted.mean(), measured.max(), predicted.max(),
              np.abs(predicted - measured).mean())  # fmt: skip
    return [name, *(f"{value:.1f}" for value in values)]


def misses(folds: bool) -> str:
    """The largest errors, one a set-up."""
    found, how = tested(folds)
    lines = []
    for metric in METRICS:
        mine = [row for row in found if row.metric == metric]
        seen: set[str] = set()
        for row in sorted(mine, key=lambda row: -abs(row.error_pct)):
            if row.setup not in seen and len(seen) < _WORST:
                seen.add(row.setup)
                lines.append(_line(row))
    return f"## The largest misses\n\nOne a set-up, {how}.\n\n" + table(
        ["", "", "measured", "predicted", "%"], lines
    )


def not_counted() -> str:
    """Rows that are simulated and shown, and why nothing rests on them."""
    rows = [row for row in runs.as_shipped().rows if not row.counts]
    lines = []
    for reason, mine in grouped(rows, lambda row: row.unfit or "grade below B+").items():
        for metric, errors in summary_of(mine).items():
            lines.append([reason, WORDS[metric], *cells(errors)])
    return "## Shown, but not counted\n\n" + table(["reason", "", *HEADER], lines)


def skipped() -> str:
    """Rows without a scenario."""
    reasons: Mapping[str, Any] = runs.as_shipped().skipped
    if not reasons:
        return ""
    counts = Counter(reasons.values())
    lines = [[str(count), reason] for reason, count in counts.most_common()]
    return "## Not simulated\n\n" + table(["rows", "reason"], lines)


def page(folds: bool = True) -> str:
    """The whole page; without *folds* what is tested out of fold is left out."""
    out_of_fold = [two_fold(), transfer()] if folds else [_LEFT_OUT, by_version()]
    parts = [
        _INTRODUCTION,
        *out_of_fold,
        loads(folds),
        rtx(),
        of_set("A cache that is too small", ("den",), _DEN),
        tensorrt(folds),
        of_set("MLPerf", ("mlpv41",), _MLPERF),
        shipped(),
        misses(folds),
        not_counted(),
        skipped(),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


_LEFT_OUT = """Written with `--as-shipped`: how constants hold on set-ups, cards and models that they were
not fitted on is not told here; `python docs/accuracy.py` writes that too."""
_DEN = """Bursts of equal requests on A100s, the KV cache as the log states it or as the memory that was free:
throughput hangs on how many sequences fit. Series t1 ran on two nodes, t3, t6 and t8 on two GPUs without
NVLink; t7, on one GPU, is the one that measures the engine. As shipped."""
_MLPERF = """Llama-2-70B in MLPerf Inference 4.1: lengths are assumed (OpenOrca), and a server run is tuned
to the edge of its latency limits, where a few percent of capacity turn a short queue into one that grows. As
shipped."""


if __name__ == "__main__":
    PAGE.write_text(page("--as-shipped" not in sys.argv), encoding="utf-8")
