"""The keys of a workload's sessions: turns, pauses, tools."""

from __future__ import annotations

from dataclasses import replace

from sim.scenario.keys import Key

MOST_STEPS = 10_000


def _count_keys(at: str, meaning: str, fewest: int) -> tuple[Key, ...]:
    """The rows of a number of things, *fewest* at least."""
    kind = f"{at}.kind"
    return (
        Key(at, "mapping", meaning, required=True),
        Key(kind, "choice", f"Its distribution; geometric begins at {fewest}.", required=True,
            choices=("fixed", "geometric", "table")),
        Key(f"{at}.mean", "number", "Its mean.", minimum=fewest, maximum=1000, required=True,
            when=(kind, ("fixed", "geometric"))),
        Key(f"{at}.values", "count", "The numbers that there are.", minimum=fewest, maximum=MOST_STEPS,
            many=True, required=True, when=(kind, ("table",))),
        Key(f"{at}.weights", "number", "How often each of them is met; they add up to 1.", minimum=0,
            many=True, required=True, when=(kind, ("table",))),
    )  # fmt: skip


def _drawn_keys(whole: Key, kinds: tuple[str, ...], mean: Key, table: Key) -> tuple[Key, ...]:
    """The rows of the distribution *whole*: of one of *kinds* with a *mean*, or a *table* of quantiles."""
    at = whole.path
    kind, of_table = f"{at}.kind", (f"{at}.kind", ("table",))
    return (
        whole,
        Key(kind, "choice", "Its distribution.", required=True, choices=(*kinds, "table")),
        replace(mean, path=f"{at}.{mean.path}", meaning="Its mean.", required=True, when=(kind, kinds)),
        Key(f"{at}.cv", "number", "Its coefficient of variation.", minimum=0, required=True,
            when=(kind, ("lognormal",))),
        Key(f"{at}.quantiles", "number", "Rising from 0 to 1.", minimum=0, maximum=1, many=True,
            required=True, when=of_table),
        replace(table, path=f"{at}.{table.path}", many=True, required=True, when=of_table),
    )  # fmt: skip


def _tokens_keys(at: str, meaning: str, required: bool) -> tuple[Key, ...]:
    """The rows of a number of tokens."""
    return _drawn_keys(
        Key(at, "mapping", meaning, required=required),
        ("fixed", "geometric", "lognormal"),
        Key("mean", "number", "", minimum=1),
        Key("tokens", "number", "Tokens at each of the quantiles, straight in their logarithm between them.",
            minimum=1),
    )  # fmt: skip


def _pause_keys(at: str, meaning: str, one_of: str = "", required: bool = False) -> tuple[Key, ...]:
    """The rows of a time between two requests of a session."""
    return _drawn_keys(
        Key(at, "mapping", meaning, one_of=one_of, required=required),
        ("fixed", "exponential", "lognormal"),
        Key("mean_s", "seconds", "", above=0),
        Key("seconds", "seconds", "Time at each of the quantiles, straight in its logarithm between them.",
            above=0),
    )  # fmt: skip


SESSION_KEYS = (
    Key("sessions", "mapping", "Users who come back: a prompt is all prompts and answers of the session so "
        "far, and what is new, which `lengths` describes. load.rate_per_s counts requests, arrivals are "
        "those of sessions."),
    *_count_keys("sessions.turns", "Turns of a session.", 1),
    *_pause_keys("sessions.gap", "Time from a turn's arrival to the next one's, as traces record it, "
        "whatever became of the answer.", "pause"),
    *_pause_keys("sessions.think", "Time from the end of a turn's answer to the next turn, which waits for "
        "it; in place of gap.", "pause"),
    *_tokens_keys("sessions.first", "What the first prompt of a session has; what `lengths` has for every "
        "turn if absent.", False),
    Key("sessions.context_tokens", "tokens", "Longest prompt: one that would be longer begins anew, with as "
        "many tokens as the session's first and what is new (a chat's or an agent's summary).", minimum=1,
        otherwise="no limit"),
    Key("sessions.tools", "mapping", "Agents: an answer may ask for a tool, whose output makes the next "
        "prompt longer. Each such call is a request of its own, with an answer as long as others."),
    *_count_keys("sessions.tools.calls", "Calls a turn; so many requests come after the turn's first.", 0),
    *_pause_keys("sessions.tools.time", "Time from the end of an answer that asks for a tool to the request "
        "with its output.", required=True),
    *_tokens_keys("sessions.tools.output", "What a tool gives back.", True),
)  # fmt: skip
