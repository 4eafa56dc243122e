"""The keys of a workload that say how long its prompts and outputs are."""

from __future__ import annotations

from sim.scenario.keys import Key

MOST_TOKENS = 1_000_000_000
_KIND = "lengths.kind"
_BY_SIDE = ("uniform", "lognormal", "mixture", "table", "geometric")


def _side_keys(side: str) -> tuple[Key, ...]:
    """The rows of the lengths of prompts or of outputs."""
    at, per = f"lengths.{side}", _KIND
    return (
        Key(f"lengths.{side}_tokens", "tokens", f"Length of every {side}.", minimum=1,
            maximum=MOST_TOKENS,
            when=(per, ("fixed", "geometric")), otherwise="needed by fixed; geometric takes it or the mean"),
        Key(f"lengths.{side}_min", "tokens", f"Shortest {side}; every whole number up to the longest is as "
            "likely.", minimum=1, maximum=MOST_TOKENS, required=True, when=(per, ("uniform",))),
        Key(f"lengths.{side}_max", "tokens", f"Longest {side}.", minimum=1, maximum=MOST_TOKENS,
            required=True, when=(per, ("uniform",))),
        Key(f"lengths.{side}_mean", "number", f"Mean {side} tokens.", minimum=1, maximum=MOST_TOKENS,
            when=(per, ("lognormal", "geometric"))),
        Key(f"lengths.{side}_cv", "number", f"Coefficient of variation of {side} tokens.", minimum=0,
            when=(per, ("lognormal",)), otherwise="cv"),
        Key(at, "mapping", f"Distribution of {side} tokens.", required=True,
            when=(per, ("mixture", "table"))),
        Key(f"{at}.weights", "number", "Weights of the lognormals; they add up to 1.", minimum=0, many=True,
            required=True, when=(per, ("mixture",))),
        Key(f"{at}.mu", "number", "Means of the logarithm.", many=True, required=True,
            when=(per, ("mixture",))),
        Key(f"{at}.sigma", "number", "Standard deviations of the logarithm.", minimum=0, many=True,
            required=True, when=(per, ("mixture",))),
        Key(f"{at}.min", "tokens", "Shorter ones are set to this.", minimum=1, when=(per, ("mixture",))),
        Key(f"{at}.max", "tokens", "Longer ones are set to this.", minimum=1, when=(per, ("mixture",))),
        Key(f"{at}.quantiles", "number", "Rising from 0 to 1.", minimum=0, maximum=1, many=True,
            required=True, when=(per, ("table",))),
        Key(f"{at}.tokens", "number", "Tokens at each of the quantiles.", above=0, many=True, required=True,
            when=(per, ("table",))),
    )  # fmt: skip


LENGTH_KEYS = (
    Key("lengths", "mapping", "How long prompts and outputs are.", required=True, unless="classes"),
    Key(_KIND, "choice", "Name of the distribution.", required=True,
        choices=("fixed", "lognormal", "uniform", "mixture", "table", "geometric", "joint", "trace")),
    Key("lengths.path", "text", "The trace, from the folder of the file that names it.", required=True,
        when=(_KIND, ("trace",))),
    *_side_keys("prompt"),
    *_side_keys("output"),
    Key("lengths.cv", "number", "Coefficient of variation of prompts and of outputs.", minimum=0,
        when=(_KIND, ("lognormal",))),
    Key("lengths.prompt_edges", "number", "Rising tokens between which the rows of `cells` lie.", above=0,
        many=True, required=True, when=(_KIND, ("joint",))),
    Key("lengths.output_edges", "number", "The same of its columns.", above=0, many=True, required=True,
        when=(_KIND, ("joint",))),
    Key("lengths.cells", "matrix", "Share of the requests in each cell, a row for each step of prompts; "
        "they add up to 1. Inside a cell both lengths are uniform in the logarithm.", required=True,
        when=(_KIND, ("joint",))),
    Key("lengths.correlation", "number", "Rank correlation (Spearman's) of a request's prompt and output, by "
        "a Gaussian copula.", minimum=-0.99, maximum=0.99, when=(_KIND, _BY_SIDE), otherwise="0"),
    Key("lengths.max_prompt_tokens", "tokens", "Longer prompts are set to this, and counted.", minimum=1),
    Key("lengths.max_output_tokens", "tokens", "Longer outputs are set to this, and counted: a cap of the "
        "service.", minimum=1),
)  # fmt: skip
