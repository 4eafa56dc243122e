"""Records all eight groups into one folder: both policies, prefix caching and asynchronous scheduling
off and on."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from random_cases import Group
from record_vllm import arguments, model_config, record


def main() -> None:
    """Writes FOLDER/GROUP.jsonl.gz for each group."""
    parser = arguments(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    model = model_config(given.model_config)
    for chosen in itertools.product(("fcfs", "priority"), (False, True), (False, True)):
        group = Group(*chosen)
        out = given.folder / f"{group.name}.jsonl.gz"
        summary = record(model, given.seed, given.small, given.large, group, out)
        print(f"{out}: {summary.text()}", flush=True)


if __name__ == "__main__":
    main()
