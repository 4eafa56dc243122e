"""The keys of a traffic class: its own, and every key of a workload that says what traffic is like."""

from __future__ import annotations

from sim.scenario.keys import Key

OF_THE_WHOLE = frozenset(
    ("name", "aliases", "source", "licence", "description", "priorities", "provenance", "classes")
)
"""What a workload says of itself and not of its traffic: no class has that."""

CLASSES_KEYS = (
    Key("classes", "mapping", "Kinds of traffic side by side, by name. A class is a workload of its own: "
        "what it does not say it has from the keys around it. Its draws have streams of their own, so that "
        "another class, or a change of one, moves nothing in the others."),
    Key("classes.<class>", "mapping", "One of them: the keys of a traffic class."),
)  # fmt: skip
TENANT_KEYS = (
    Key("tenants", "count", "How many send, each as `arrivals` has it, independently of the others.",
        minimum=1, maximum=100_000, otherwise="1"),
    Key("tenant_zipf", "number", "Exponent of their shares of the requests: tenant k has a weight of "
        "k^-tenant_zipf.", minimum=0, otherwise="1"),
    Key("tenant_shares", "share", "The largest tenants' shares of the requests; tenant_zipf divides what is "
        "left.", minimum=0, maximum=1, many=True),
)  # fmt: skip
OWN_KEYS = (
    Key("share", "number", "Its weight in load.rate_per_s, relative to those of the others.", above=0,
        one_of="class load", otherwise="1; with concurrency it has none"),
    Key("concurrency", "count", "Users that send again when answered (a closed loop), beside whatever comes "
        "at a rate, for as long as that comes; in place of share.", minimum=1, maximum=1_000_000,
        one_of="class load"),
    Key("think", "mapping", "How long those users think between an answer and the next request; not at all "
        "if absent.", needs="concurrency"),
    Key("think.kind", "choice", "Its distribution.", required=True, choices=("fixed", "exponential")),
    Key("think.mean_s", "seconds", "Its mean.", above=0, required=True),
    Key("priority", "count", "How urgent its requests are, for engine.scheduling_policy priority: 0 is the "
        "most urgent.", minimum=0, maximum=1_000_000, otherwise="0"),
    Key("slo", "mapping", "Latency limits of this class; the scenario's hold for all classes."),
    Key("slo.<limit>", "seconds", "Limit on a metric's mean, maximum or percentile, e.g. ttft_p99_s.",
        above=0),
)  # fmt: skip


def class_keys(workload_keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """The table of a traffic class: its own keys, and those of *workload_keys* that a class may have."""
    return (*OWN_KEYS, *(key for key in workload_keys if key.parts[0] not in OF_THE_WHOLE))
