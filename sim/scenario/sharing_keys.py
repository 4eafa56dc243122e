"""The keys of a workload that say which tokens its requests share."""

from __future__ import annotations

from sim.scenario.keys import Key
from sim.scenario.session_keys import SESSION_KEYS

_REUSE = ("prefixes.kind", ("reuse",))

SHARING_KEYS = (
    Key("prefixes", "mapping", "Which prompts begin alike, for prefix caching to find; none do if absent. "
        "Where the workload is nothing but the path of a .jsonl trace (`workload: trace.jsonl`), they are "
        "`{kind: trace}`."),
    Key("prefixes.kind", "choice", "groups: heads drawn by popularity, in place of a prompt's first tokens. "
        "trace: by the ids of the trace's lengths. reuse: from an earlier prompt each, by tables of how much "
        "and of how long ago. none: none do.", required=True, choices=("groups", "trace", "reuse", "none")),
    Key("prefixes.groups", "count", "How many heads there are.", minimum=1, maximum=1_000_000, required=True,
        when=("prefixes.kind", ("groups",))),
    Key("prefixes.tokens", "tokens", "Length of every head; a shorter prompt is all head.", minimum=1,
        when=("prefixes.kind", ("groups",)), otherwise="groups take it or tokens_mean"),
    Key("prefixes.tokens_mean", "number", "Mean length of the heads, which are lognormal.", minimum=1,
        when=("prefixes.kind", ("groups",))),
    Key("prefixes.tokens_cv", "number", "Coefficient of variation of the heads' lengths.", minimum=0,
        when=("prefixes.kind", ("groups",)), otherwise="0; with tokens_mean"),
    Key("prefixes.zipf", "number", "Exponent of the heads' popularity: head g has a weight of g^-zipf.",
        minimum=0, when=("prefixes.kind", ("groups",)), otherwise="1"),
    Key("prefixes.share", "share", "Share of the prompts that have a head.", minimum=0, maximum=1,
        when=("prefixes.kind", ("groups",)), otherwise="1"),
    Key("prefixes.block_tokens", "tokens", "Tokens of the block that each of hash_ids stands for.", minimum=1,
        when=("prefixes.kind", ("trace",)),
        otherwise="by the file's keys: 512 with timestamp (Mooncake), 16 with chat_id too (Qwen-Bailian)"),
    Key("prefixes.hash_of", "choice", "What an id stands for: its block and all before it, so that it always "
        "comes after the same ids, or its block alone.", choices=("prefix", "block"),
        when=("prefixes.kind", ("trace",)), otherwise="prefix"),
    Key("prefixes.head_tokens", "tokens", "First tokens that all prompts have alike; a shorter prompt is all "
        "head.", minimum=0, when=_REUSE, otherwise="0"),
    Key("prefixes.seen", "mapping", "Share of a prompt, from its first token on, that an earlier prompt has.",
        required=True, when=_REUSE),
    Key("prefixes.seen.up_to_tokens", "tokens", "Rising: the longest prompt of each class of lengths but the "
        "last, which has the longer ones.", minimum=1, many=True, otherwise="all prompts are one class"),
    Key("prefixes.seen.quantiles", "number", "Rising from 0 to 1.", minimum=0, maximum=1, many=True,
        required=True),
    Key("prefixes.seen.rows", "matrix", "A row for each class: the share at each of the quantiles, from 0 "
        "to 1, straight between them.", required=True),
    Key("prefixes.age", "mapping", "How long before it that prompt was sent.", required=True, when=_REUSE),
    Key("prefixes.age.quantiles", "number", "Rising from 0 to 1.", minimum=0, maximum=1, many=True,
        required=True),
    Key("prefixes.age.seconds", "seconds", "The age at each of the quantiles, straight in its logarithm "
        "between them; of ages before the run's first request there are none.", above=0, many=True,
        required=True),
    *SESSION_KEYS,
    Key("answers", "count", "Answers wanted to each prompt, which comes so often at once; each is a request "
        "of its own.", minimum=1, maximum=1000, otherwise="1"),
)  # fmt: skip
