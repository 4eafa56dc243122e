"""What a run takes people and their clients to do, in sentences: nobody has measured that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.simulation.recorder import CANCELLED
from sim.simulation.retries import OUTCOMES, Retries, retries_of
from sim.workload import classes_of
from sim.workload.patience import limits_of

_WITHOUT = {"total": "a whole answer", "first_token": "a first token", "queue": "a place in a batch"}


def people_warnings(workload: Mapping[str, Any]) -> list[str]:
    """Every assumption about people that *workload* makes, class by class."""
    named = bool(workload.get("classes"))
    return [
        f"assumed{f' of class {name}' if named else ''}: {sentence}"
        for name, own in classes_of(workload).items()
        for sentence in (*_of_patience(own.get("patience") or {}), *_of_clients(own))
    ]


def _of_patience(patience: Mapping[str, Any]) -> list[str]:
    sentences = [
        f"{_who(part)} leave without {_WITHOUT[limit]} after {_spread(part, part['mean_s'], ' s')}"
        for limit, part in limits_of(patience).items()
    ]
    if stop := patience.get("stop_after"):
        read = "any number of tokens, evenly" if stop["kind"] == "uniform" else None
        sentences.append(f"{_who(stop)} read {read or _spread(stop, stop['mean'], ' tokens')} and then leave")
    if share := patience.get("silent_share"):
        noticed = patience.get("detection_s")
        until = "to the end" if noticed is None else f"until it notices, {noticed:g} s later"
        sentences.append(f"{share:.3g} of those who leave do not tell the server, which works on {until}")
    return sentences


def _of_clients(workload: Mapping[str, Any]) -> list[str]:
    sentences = []
    if (retries := retries_of(workload.get("retries"))) is not None:
        sentences.append(_again(retries))
    if (most := workload.get("connections")) is not None:
        sentences.append(
            f"clients have {most} connections; who waits for one counts from when it meant to send"
        )
    return sentences


def _again(retries: Retries) -> str:
    outcomes = " or ".join(name for name, status in OUTCOMES.items() if status in retries.on)
    return (
        f"requests that are {outcomes} are sent again, {retries.most} times at most, after {_wait(retries)}; "
        f"attempts without a token time out after {retries.timeout_s:g} s; latencies count from the first "
        "send"
    )


def _wait(retries: Retries) -> str:
    wait = f"min({retries.base_s:g} x 2^k, {retries.cap_s:g}) s less up to {retries.jitter:.3g} of it"
    told_s = retries.retry_after_s
    if told_s is None or retries.on == {CANCELLED}:  # who leaves hears nothing from the server
        return wait
    if told_s > retries.longest_retry_after_s:
        return f"{wait} (a longer Retry-After is ignored)"
    told = f"{told_s:g} s, as the server asks"
    return f"{told}, or, where they were abandoned, {wait}" if CANCELLED in retries.on else told


def _who(part: Mapping[str, Any]) -> str:
    share = part.get("share")
    return "clients" if share is None else f"{share:.3g} of the clients"


def _spread(part: Mapping[str, Any], mean: float, unit: str) -> str:
    if part["kind"] == "fixed":
        return f"{mean:g}{unit}"
    other = "".join(f", {name} {part[name]:g}" for name in ("cv", "shape") if part.get(name) is not None)
    return f"{mean:g}{unit} in the mean ({part['kind']}{other})"
