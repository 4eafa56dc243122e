"""The keys of a workload that say what people put up with, and what their clients do about a failure."""

from __future__ import annotations

from sim.scenario.keys import Key

KINDS = ("fixed", "exponential", "weibull", "lognormal")


def _time_keys(at: str, mean: Key, kinds: tuple[str, ...] = KINDS) -> tuple[Key, ...]:
    """The rows of a distribution at the path *at*; *mean* is that of its mean."""
    whole = at == "patience"
    return (
        Key(f"{at}.kind", "choice", "Its distribution.", required=not whole, choices=kinds,
            otherwise="no limit in total" if whole else ""),
        mean,
        Key(f"{at}.cv", "number", "Its coefficient of variation.", minimum=0, required=True,
            when=(f"{at}.kind", ("lognormal",))),
        Key(f"{at}.shape", "number", "Its shape: below 1, who has waited long waits on.", above=0,
            required=True, when=(f"{at}.kind", ("weibull",))),
        Key(f"{at}.share", "share", "Share of the clients that it holds for.", minimum=0, maximum=1,
            when=(f"{at}.kind", kinds), otherwise="1"),
    )  # fmt: skip


def _limit_keys(at: str, until: str) -> tuple[Key, ...]:
    mean = Key(f"{at}.mean_s", "seconds", "Its mean.", above=0, required=True, when=(f"{at}.kind", KINDS))
    return (Key(at, "mapping", f"How long after its send a client leaves {until}."), *_time_keys(at, mean))


_READ = "patience.stop_after"

PEOPLE_KEYS = (
    Key("patience", "mapping", "How long after its send a client gives up, wherever its request is then "
        "(kind and mean_s), and what else makes it leave; none does if absent."),
    *_time_keys("patience", Key("patience.mean_s", "seconds", "Its mean.", above=0, required=True,
                                when=("patience.kind", KINDS))),
    *_limit_keys("patience.total", "that has no whole answer by then; the same as kind and mean_s"),
    *_limit_keys("patience.first_token", "that has no token by then"),
    *_limit_keys("patience.queue", "whose request is in no batch by then"),
    Key(_READ, "mapping", "After how many tokens of its answer a reader has had enough and leaves."),
    *_time_keys(_READ, Key(f"{_READ}.mean", "number", "Mean tokens.", minimum=1, required=True,
                           when=(f"{_READ}.kind", KINDS)), (*KINDS, "uniform")),
    Key("patience.silent_share", "share", "Share of the clients that leave without telling the server, which "
        "works on.", minimum=0, maximum=1, otherwise="0"),
    Key("patience.detection_s", "seconds", "How long after that the server notices.", above=0,
        otherwise="it never does"),
    Key("retries", "mapping", "Clients that try again; none does if absent. A request is one piece of work, "
        "however often it is sent: its latency counts from the first time."),
    Key("retries.client", "choice", "Whose habits: openai-python waits min(0.5 x 2^k, 8) s less up to a "
        "quarter, at random, after failure k = 0 and 1; an attempt without a token times out after 600 s.",
        choices=("openai-python",), otherwise="openai-python"),
    Key("retries.max", "count", "How many times at most.", minimum=0, maximum=100, otherwise="2"),
    Key("retries.base_s", "seconds", "Wait after the first failure; twice as long after each further one.",
        minimum=0, otherwise="0.5"),
    Key("retries.cap_s", "seconds", "Longest such wait.", minimum=0, otherwise="8"),
    Key("retries.jitter", "share", "A wait is shorter by up to this share of it, uniformly.", minimum=0,
        maximum=1, otherwise="0.25"),
    Key("retries.on", "choice", "What is tried again: requests that the server rejected, that timed out (in "
        "its queue or by timeout_s), or that a person abandoned and asks for again, with new patience.",
        many=True, choices=("rejected", "timed_out", "abandoned"), otherwise="rejected and timed_out"),
    Key("retries.timeout_s", "seconds", "The client's own limit: an attempt that has no token so long after "
        "its send is given up.", above=0, otherwise="600"),
    Key("retries.retry_after_s", "seconds", "What the server's Retry-After asks for; up to 60 s is obeyed.",
        minimum=0, otherwise="it asks for nothing"),
    Key("connections", "count", "Requests that the clients have in flight at most; further ones wait for a "
        "free connection, and their latency counts from when they were meant to be sent.", minimum=1,
        otherwise="as many as come"),
)  # fmt: skip
