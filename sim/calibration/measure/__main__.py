"""`python -m sim.calibration.measure`: the command where only torch, numpy and yaml are installed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sim.calibration.measure.command import DEFAULT_MINUTES, measure
from sim.calibration.measure.grids import DEFAULT_MODELS
from sim.faults import InputFault


def main() -> int:
    """Measure as the arguments say. 0: measured; 2: the input is at fault; 130: interrupted."""
    parser = argparse.ArgumentParser(prog="python -m sim.calibration.measure", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="TABLE.csv")
    parser.add_argument("--models", default=",".join(DEFAULT_MODELS), metavar="A,B,...")
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES)
    given = parser.parse_args()
    try:
        models = [name.strip() for name in given.models.split(",") if name.strip()]
        print(measure(given.device, given.out, models, given.minutes))
    except InputFault as fault:
        print("\n".join(fault.faults), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept, and the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
