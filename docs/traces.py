"""Writes docs/traces.md: the formats of recorded traffic, from the table by which they are read."""

from __future__ import annotations

from pathlib import Path

from sim.results.warnings import NOTES
from sim.scenario.trace_keys import TRACE_ROLES
from sim.workload.readers.formats import FORMATS, NAMES, Format

PAGE = Path(__file__).with_name("traces.md")

HEAD = """\
# Recorded traffic

`workload: day.csv` replays a file: its own times with `load: trace` (`load.time_scale` times as fast), or
its shape at `load.rate_per_s`. A file may be CSV with a header, JSON lines, Parquet or a log; `.gz` is
unpacked. It is read in blocks, so that its text is never in memory as a whole, and times are exact to the
nanosecond. What a file does not tell goes under `trace` (docs/scenario.md):

```yaml
workload:
  base: requests.csv
  trace: {columns: {arrival: ts, prompt: n_in, output: n_out, class: team}, time_unit: ms}
```

A log is taken apart by a regular expression. Without lengths it gives the arrivals alone, and `lengths` of
another kind go with them:

```yaml
workload:
  base: access.log
  trace: {pattern: '\\[(?P<arrival>[^]]+)\\] "POST [^"]*" (?P<status>\\d+)'}
  lengths: {kind: lognormal, prompt_mean: 900, output_mean: 200, cv: 1}
```

`kneesim workload fit` and `show` take the same on the command line (`trace.time_unit=ms`), or such a
workload in a file:

```
kneesim workload fit requests.csv trace.columns.arrival=ts trace.time_unit=ms --out mine.yaml
```

## Formats

A format is known by its columns (in any case); the first that fits is taken, or the one that `trace.format`
names.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, _formats(), _columns(), _rules(), _notes()])


def _formats() -> str:
    rows = ["| format | made by | known by | times | tokens of a block |", "|---|---|---|---|---|"]
    for form in FORMATS:
        known_by = " or ".join(", ".join(f"`{mark}`" for mark in marks) for marks in form.marks)
        known_by = known_by or _by_file(form)
        unit = {"iso": "dates", None: "by the column"}.get(form.unit, form.unit)
        rows.append(f"| {form.name} | {form.made_by} | {known_by} | {unit} | {form.block_tokens or ''} |")
    return "\n".join(rows) + "\n"


def _by_file(form: Format) -> str:
    ways = {"common-log": "a file called .log, .log.1 and the like", "pattern": "`trace.pattern`"}
    return ways.get(form.name, "nothing else fits")


def _columns() -> str:
    rows = ["## Columns", "", "| role | what it holds | columns that have it |", "|---|---|---|"]
    for role, meaning in TRACE_ROLES.items():
        own = [f"`{name}` ({form.name})" for form in FORMATS for name in form.names.get(role, ())]
        rows.append(f"| {role} | {meaning} | {', '.join([*(f'`{name}`' for name in NAMES[role]), *own])} |")
    return "\n".join(rows) + "\n"


def _rules() -> str:
    rows = [f"- {form.name}: {rule}" for form in FORMATS for rule in form.rules]
    return "\n".join(["## Rules of single formats", "", *rows]) + "\n"


OTHER_RULES = """\
Rows in no order of time are sorted. But where the time goes back for a long stretch, by half of what came
before or more, the file is two traces, and a fault names the line; so it is where dates without a zone go
back by an hour. Numbers of an unknown unit are a fault, which says what each unit would make of the mean
rate. Dates of a table have one time zone; those of a log may change theirs. A folder of ServeGen's clients
describes traffic and has no requests.
"""


def _notes() -> str:
    counted = ("zero_output_dropped", "failed_dropped", "log_lines_unmatched", "trace_rows_sorted",
               "trace_rows_alike", "times_of_another_zone", "tokens_estimated_from_bytes")  # fmt: skip
    rows = [f"- {NOTES[name].format('N')}" for name in counted]
    return "\n".join(["## What is counted", "", "The warnings of a result have:", "", *rows, "", OTHER_RULES])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
