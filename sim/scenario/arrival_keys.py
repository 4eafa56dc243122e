"""The keys of a workload that say when its requests come."""

from __future__ import annotations

from sim.scenario.keys import Key

_KIND = "arrivals.kind"
MOST_CV = 100
LEAST_STAY_S = 0.001

ARRIVAL_KEYS = (
    Key("arrivals", "mapping", "When requests come: the shape; load gives the mean rate.", {}),
    Key(_KIND, "choice", "Its name. poisson, constant, gamma and weibull are gaps of one distribution each, "
        "mmpp and on_off Poisson processes whose rate changes at random, trace recorded times.", "poisson",
        choices=("poisson", "constant", "gamma", "weibull", "mmpp", "on_off", "trace")),
    Key("arrivals.burstiness", "number", "Shape of the gamma distribution, as load generators have it: 1 is "
        "a Poisson process, less is burstier; the gaps' coefficient of variation is its -1/2th power.",
        minimum=1e-4, maximum=1e6, when=(_KIND, ("gamma",)), otherwise="gamma takes it or cv"),
    Key("arrivals.cv", "number", "Coefficient of variation of the gaps.", minimum=0.01, maximum=MOST_CV,
        when=(_KIND, ("gamma", "weibull")), otherwise="needed by weibull; gamma takes it or burstiness"),
    Key("arrivals.rates", "number", "Rate in each state, relative to the others; scaled so that the mean "
        "rate is the load's.", minimum=0, many=True, required=True, when=(_KIND, ("mmpp",))),
    Key("arrivals.sojourn_s", "seconds", "Mean time in each state, exponential, whatever the load's rate is.",
        minimum=LEAST_STAY_S, many=True, required=True, when=(_KIND, ("mmpp",))),
    Key("arrivals.transitions", "matrix", "For each state a row: the probability of each state to come next. "
        "Rows add up to 1, with 0 on the diagonal.", when=(_KIND, ("mmpp",)),
        otherwise="needed by more than two states"),
    Key("arrivals.on_s", "seconds", "Mean time in which requests come, exponential, whatever the load's rate "
        "is.", minimum=LEAST_STAY_S, required=True, when=(_KIND, ("on_off",))),
    Key("arrivals.off_s", "seconds", "Mean time in which none come, likewise.", minimum=LEAST_STAY_S,
        required=True, when=(_KIND, ("on_off",))),
    Key("arrivals.path", "text", "The trace, from the folder of the file that names it.", required=True,
        when=(_KIND, ("trace",))),
    Key("arrivals.jitter_s", "seconds", "Each recorded time is moved by up to so much at random, before "
        "load.time_scale; 3 for times on a grid of 3 s.", above=0, when=(_KIND, ("trace",)),
        otherwise="0"),
    Key("arrivals.series", "mapping", "A relative rate over time, such as that of a day: the process runs so "
        "much faster or slower, and mmpp and on_off have both. The load's rate is its mean over the period, "
        "or over the whole span."),
    Key("arrivals.series.times_s", "seconds", "Rising from 0, the start of the run.", minimum=0, many=True,
        required=True),
    Key("arrivals.series.rates", "number", "The relative rate at each of the times.", minimum=0, many=True,
        required=True),
    Key("arrivals.series.period_s", "seconds", "After that it begins again.", minimum=1,
        otherwise="never; the last rate holds on"),
    Key("arrivals.series.interpolation", "choice", "linear: straight between the times. step: each rate "
        "holds until the next time.", "linear", choices=("linear", "step")),
    Key("arrivals.batch", "mapping", "How many requests come at each arrival, at the same mean rate of "
        "requests; one if absent."),
    Key("arrivals.batch.kind", "choice", "Their distribution.", required=True,
        choices=("fixed", "geometric")),
    Key("arrivals.batch.mean", "number", "Their mean.", minimum=1, maximum=100_000, required=True),
)  # fmt: skip
