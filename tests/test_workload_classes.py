"""Traffic classes: their draws are their own, their shares those that were asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sim.clock import on_grid
from sim.workload import Requests, generate, generate_chunks, mean_context_tokens, mean_tokens
from sim.workload.classes import users_of
from sim.workload.streams import Streams
from sim.workload.tenants import tenant_shares

CHAT = {
    "arrivals": {"kind": "poisson"},
    "lengths": {"kind": "lognormal", "prompt_mean": 400, "output_mean": 90, "cv": 1},
}
MAIL = {
    "arrivals": {"kind": "constant"},
    "lengths": {"kind": "geometric", "prompt_mean": 50, "output_mean": 20},
}
GROUPS = {"kind": "groups", "groups": 3, "tokens": 30}
SESSIONS = {"turns": {"kind": "geometric", "mean": 3.0}, "gap": {"kind": "exponential", "mean_s": 5.0}}
PATIENCE = {"kind": "exponential", "mean_s": 9.0}


def sent(rate_per_s: float = 4.0, run: dict[str, Any] | None = None, /, **classes: Any) -> Requests:
    return generate({"classes": classes}, {"rate_per_s": rate_per_s}, run or {"requests": 400, "seed": 1})


def of_class(requests: Requests, name: str) -> list[bytes]:
    """The columns of one class, as bytes."""
    assert requests.classes is not None
    mine = requests.classes == requests.class_names.index(name)
    columns = [requests.arrival_s, requests.prompt_tokens, requests.output_tokens]
    return [column[mine].tobytes() for column in columns]


def test_another_class_moves_nothing_in_the_others() -> None:
    """At the same rate of its own each has the same requests, in bytes: alone, beside another one, beside
    one that has other lengths, other arrivals or shares prompts."""
    run = {"duration_s": 60.0, "seed": 1}
    alone = of_class(sent(2.0, run, chat=CHAT), "chat")
    for other in (
        MAIL,
        {**MAIL, "lengths": CHAT["lengths"]},
        {**CHAT, "prefixes": GROUPS},
        {**CHAT, "sessions": SESSIONS},
    ):
        assert of_class(sent(4.0, run, chat=CHAT, other=other), "chat") == alone
        assert of_class(sent(4.0, run, other=other, chat=CHAT), "chat") == alone
    assert of_class(sent(2.0, run, talk=CHAT), "talk") != alone


def test_a_class_draws_from_the_streams_of_its_name() -> None:
    """Not from those of a workload without classes."""
    plain = generate(CHAT, {"rate_per_s": 4.0}, {"requests": 400, "seed": 1})
    assert of_class(sent(chat=CHAT), "chat")[1] != plain.prompt_tokens.tobytes()


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    """Of classes too, with sessions and shared prompts among them; so does one that ends by time."""
    classes = {
        "chat": {**CHAT, "sessions": SESSIONS, "patience": PATIENCE},
        "mail": {**MAIL, "prefixes": GROUPS},
    }
    short = sent(4.0, {"requests": 100, "seed": 1}, **classes)
    long = sent(4.0, {"requests": 400, "seed": 1}, **classes)
    timed = sent(4.0, {"duration_s": 1000.0, "seed": 1}, **classes)
    for longer in (long, timed):
        for name in ("arrival_s", "prompt_tokens", "output_tokens", "patience_s", "classes"):
            assert getattr(short, name).tobytes() == getattr(longer, name)[:100].tobytes()
        assert short.contents is not None
        assert longer.contents is not None
        assert all(short.contents.of(row) == longer.contents.of(row) for row in range(100))


def test_classes_come_in_order_of_time() -> None:
    """At one time, in the order in which they are written; the pieces of a run are the whole, in bytes."""
    requests = sent(8.0, {"requests": 400, "seed": 1}, a=MAIL, b=MAIL, c=CHAT)
    assert (np.diff(requests.arrival_s) >= 0).all()
    assert requests.classes is not None
    assert requests.classes[requests.arrival_s == 0].tolist() == [0, 1]
    pieces = list(generate_chunks({"classes": {"a": MAIL, "b": MAIL, "c": CHAT}}, {"rate_per_s": 8.0},
                                  {"requests": 400, "seed": 1}, 64))  # fmt: skip
    for name in ("arrival_s", "prompt_tokens", "classes"):
        whole = np.concatenate([getattr(piece, name) for piece in pieces])
        assert whole.tobytes() == getattr(requests, name).tobytes()


def test_shares_are_weights_in_the_rate() -> None:
    """3 to 1, whatever their sum: both counts are binomial, inside an interval of 99.9 %."""
    count = 20_000
    requests = sent(5.0, {"requests": count, "seed": 1}, a={**CHAT, "share": 6}, b={**CHAT, "share": 2})
    assert requests.classes is not None
    found = np.count_nonzero(requests.classes == 0)
    assert abs(found - 0.75 * count) < 3.291 * math.sqrt(0.75 * 0.25 * count)
    assert abs(requests.arrival_s[-1] - count / 5.0) < 3.291 * math.sqrt(count) / 5.0


def test_a_class_of_a_small_share_may_send_nothing() -> None:
    """No fault of the run's; nobody at all is."""
    requests = sent(4.0, {"duration_s": 10.0, "seed": 1}, a=CHAT, b={**CHAT, "share": 1e-9})
    assert requests.classes is not None
    assert set(requests.classes.tolist()) == {0}


def test_prompts_of_different_classes_share_nothing() -> None:
    """Though both have the same few heads: of each class only the first of a head has to be computed."""
    fixed = {"kind": "fixed", "prompt_tokens": 40, "output_tokens": 2}
    both = {"lengths": fixed, "prefixes": {**GROUPS, "groups": 1}}
    requests = sent(4.0, {"requests": 50, "seed": 1}, a=both, b=both)
    assert requests.contents is not None
    assert requests.classes is not None
    streams = [requests.contents.of(row)[0][0][0] for row in range(50)]
    owners = dict(zip(streams, requests.classes.tolist(), strict=True))
    assert sorted(owners.values()) == [0, 1]
    assert requests.notes["prompt_tokens_seen_before"] == 30 * (50 - 2)


def test_a_class_may_be_more_urgent() -> None:
    """The others are at 0; where no class says, nobody has a priority."""
    requests = sent(a=CHAT, b={**MAIL, "priority": 2})
    assert requests.priorities is not None
    assert requests.classes is not None
    assert requests.priorities.tolist() == (2 * requests.classes).tolist()
    assert sent(a=CHAT, b=MAIL).priorities is None


def test_patience_is_that_of_the_class() -> None:
    """Without end where it has none."""
    requests = sent(a={**CHAT, "patience": PATIENCE}, b=MAIL)
    assert requests.patience_s is not None
    assert requests.classes is not None
    assert np.isinf(requests.patience_s[requests.classes == 1]).all()
    assert np.isfinite(requests.patience_s[requests.classes == 0]).all()


def test_sessions_of_a_class_name_their_own_rows() -> None:
    """The row that a turn waits for is of the same class, and lower."""
    thinking = {**CHAT, "sessions": {"turns": SESSIONS["turns"], "think": SESSIONS["gap"]}}
    requests = sent(4.0, {"requests": 600, "seed": 1}, a=MAIL, b=thinking)
    assert requests.follows is not None
    assert requests.classes is not None
    waiting = np.flatnonzero(requests.follows.previous >= 0)
    before = requests.follows.previous[waiting]
    assert len(waiting) > 100
    assert (before < waiting).all()
    assert (requests.classes[before] == 1).all()
    assert (requests.classes[waiting] == 1).all()
    passed_s = requests.arrival_s[waiting] - requests.arrival_s[before]
    assert passed_s == pytest.approx(requests.follows.think_s[waiting], abs=1e-9)


def test_means_are_those_of_what_is_sent() -> None:
    """By shares; the context of a running sequence by the tokens that a class writes."""
    classes = {"a": {**CHAT, "share": 3}, "b": {**MAIL, "share": 1}}
    requests = sent(4.0, {"requests": 100_000, "seed": 1}, **classes)
    p, o = requests.prompt_tokens.astype(float), requests.output_tokens.astype(float)
    prompt, output = mean_tokens({"classes": classes})
    assert p.mean() == pytest.approx(prompt, rel=0.02)
    assert o.mean() == pytest.approx(output, rel=0.02)
    context = (o * p + o * o / 2).sum() / o.sum()
    assert context == pytest.approx(mean_context_tokens({"classes": classes}), rel=0.03)


# -- tenants -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [{"tenant_zipf": 1.2}, {"tenant_shares": [0.5, 0.2]}], ids=str)
def test_tenants_have_their_shares(told: dict[str, Any]) -> None:
    """Of Poisson arrivals: each tenant's count is binomial, inside an interval of 99.9 %, and a tenant's
    times are those that it has alone at its rate."""
    workload = {**CHAT, "tenants": 5, **told}
    shares = tenant_shares(workload)
    requests = generate(workload, {"rate_per_s": 10.0}, {"requests": 20_000, "seed": 1})
    assert shares.sum() == pytest.approx(1.0)
    left = requests.arrival_s
    for number, share in enumerate(shares.tolist()):
        own = Streams(1).within(f"tenants.{number}").open("arrivals").standard_exponential(20_000)
        own_s = on_grid(np.cumsum(own) / (10.0 * share))
        mine = np.isin(left, own_s)
        assert abs(np.count_nonzero(mine) - share * 20_000) < 3.291 * math.sqrt(share * (1 - share) * 20_000)
        left = left[~mine]
    assert len(left) == 0


def test_told_shares_are_kept_and_the_others_have_what_is_left() -> None:
    """The first two exactly as they are told; the next three by Zipf's law, so that all add up to 1."""
    shares = tenant_shares({"tenants": 5, "tenant_shares": [0.5, 0.2]})
    assert shares[:2] == pytest.approx([0.5, 0.2], rel=1e-12)
    assert shares[2:] * [3, 4, 5] == pytest.approx([shares[2] * 3] * 3)
    assert shares.sum() == pytest.approx(1.0, rel=1e-12)


def test_many_tenants_of_constant_pace_are_less_regular_than_one() -> None:
    """And the longer run begins with the shorter one, however they are taken."""
    workload = {**MAIL, "tenants": 40, "tenant_zipf": 1.0}
    long = generate(workload, {"rate_per_s": 10.0}, {"requests": 3000, "seed": 1})
    short = generate(workload, {"rate_per_s": 10.0}, {"requests": 100, "seed": 1})
    pieces = generate_chunks(workload, {"rate_per_s": 10.0}, {"requests": 3000, "seed": 1}, 70)
    assert long.arrival_s[:100].tobytes() == short.arrival_s.tobytes()
    assert np.concatenate([piece.arrival_s for piece in pieces]).tobytes() == long.arrival_s.tobytes()
    assert np.diff(long.arrival_s).std() > 0.5 * np.diff(long.arrival_s).mean()


def test_tenants_of_one_class_move_no_other_class() -> None:
    """Their streams are the class's."""
    run = {"duration_s": 60.0, "seed": 1}
    alone = of_class(sent(4.0, run, chat=CHAT, mail=MAIL), "chat")
    assert of_class(sent(4.0, run, chat=CHAT, mail={**MAIL, "tenants": 7}), "chat") == alone


def test_users_send_the_requests_of_their_class() -> None:
    """All of them and no other's, and think as long as their class does; a class at a rate has no users."""
    think = {"kind": "fixed", "mean_s": 3.0}
    classes = {
        "chat": CHAT,
        "desk": {**CHAT, "concurrency": 2, "think": think},
        "mail": {**MAIL, "concurrency": 5},
    }
    workload = {"classes": classes}
    requests = generate(workload, {"rate_per_s": 4.0}, {"requests": 40, "user_requests": 30, "seed": 1})
    assert requests.classes is not None
    desk, mail = users_of(workload, requests, 1)
    assert [(desk.of_class, desk.count), (mail.of_class, mail.count)] == [(1, 2), (2, 5)]
    for users in (desk, mail):
        assert users.rows.tolist() == np.flatnonzero(requests.classes == users.of_class).tolist()
        assert len(users.rows) == len(users.think_s) == 30
    assert (set(desk.think_s.tolist()), set(mail.think_s.tolist())) == ({3.0}, {0.0})
