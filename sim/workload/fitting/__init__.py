"""A profile from a trace: numbers only, that draw traffic like it."""

from sim.workload.fitting.lengths import fit_quantile_table, table_distance
from sim.workload.fitting.profile import Fit, fit_trace, recorded_portrait

__all__ = ["Fit", "fit_quantile_table", "fit_trace", "recorded_portrait", "table_distance"]
