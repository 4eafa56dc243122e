"""The profile of a card that was not measured, from the nearest one that was, by ratios of the two.

The card's own file has its datasheet, and under `scaled` from which card its kernels are to come:

* flops_per_s times `compute`, or the ratio of the peaks of that type;
* bytes_per_s of linear layers, decode attention and elementwise work times `memory_bandwidth`, or the ratio
  of the memory bandwidths;
* times a head times `heads`, or the inverse ratio of the 16-bit peaks: heads are worked off by SMs x clock;
* bytes_per_s of all-reduce times `link`, or the ratio of the links, from `link_from` (the same card if not
  said), for `link_gpus` at most; with `ring` it is that of two GPUs times n / (2 (n - 1)), as in a ring;
* exponents, overheads and latencies unchanged; residuals only with `same_chip`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.calibration.profile_text import profile_text
from sim.faults import InputFault
from sim.scenario import default_folders
from sim.scenario.references import read_part
from sim.scenario.tree import Faults, Place, Tree, from_python
from sim.scenario.yaml_core import read_file

Entry = Callable[[str], Mapping[str, Any]]


def scaled_profile(own: Mapping[str, Any], entry: Entry) -> dict[str, Any]:
    """The profile *own* (base units) with its kernels made anew, as its `scaled` says.

    *entry* gives the profile of a name. Raises `InputFault` where there is no `scaled`, or where it leads
    to a card that is itself scaled.
    """
    how = own.get("scaled")
    if not how:
        raise InputFault(f"hardware profile {own.get('name')} has no `scaled`: it is not made from another's")
    source, linked = entry(how["from"]), entry(how.get("link_from", how["from"]))
    for card in (source, linked):
        if card.get("scaled"):
            raise InputFault(
                f"hardware profile {own.get('name')}: scaled.from {card['name']} is scaled itself"
            )
    scale = _Scale(own, source, linked)
    origins = {key: value for key, value in own["provenance"].items() if not key.startswith("kernel")}
    kernels = {**scale.sections(source["kernels"]), **scale.collectives(linked["kernels"])}
    others = {
        name: made
        for name, sections in source.get("kernel_sources", {}).items()
        if (made := {**scale.sections(sections), **scale.collectives(_of(linked, name))})
    }
    kept = {key: value for key, value in own.items() if not key.startswith("kernel")}
    kept |= {key: source[key] for key in ("kernel_source",) if key in source}
    told = {f"kernels.{name}": scale.origin(name) for name in kernels}
    for other, sections in others.items():
        told |= {f"kernel_sources.{other}.{name}": scale.origin(name) for name in sections}
    made = {**kept, "kernels": kernels, **({"kernel_sources": others} if others else {})}
    return {**made, "provenance": {**origins, **told}}


def _of(card: Mapping[str, Any], backend: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = card.get("kernel_sources", {}).get(backend, {})
    return found


def scaled_files() -> list[Path]:
    """The shipped profiles that are made so."""
    paths = sorted(default_folders()["hardware"].glob("*.yaml"))
    return [path for path in paths if "\nscaled:" in path.read_text(encoding="utf-8")]


def rescale(paths: Iterable[Path], entry: Entry) -> list[Path]:
    """Write the profiles in the files *paths* anew; returns those that changed. Raises `InputFault`."""
    made = {}
    for path in paths:
        own = _own(path, entry)
        made[path] = profile_text(scaled_profile(own, entry), _title(own))
    changed = [path for path, text in made.items() if text != path.read_text(encoding="utf-8")]
    for path in changed:
        path.write_text(made[path], encoding="utf-8")
    return changed


def _title(own: Mapping[str, Any]) -> str:
    return f"{own['name']}, estimated from {own['scaled']['from']} by `kneesim calibrate scale`."


def _own(path: Path, entry: Entry) -> dict[str, Any]:
    """The profile in the file *path*, whose kernels may be missing. Raises `InputFault`."""
    faults = Faults()
    tree = read_file(path, faults)
    faults.raise_any()
    source = tree.get(("scaled", "from"))
    if not isinstance(source, str):
        raise InputFault(f"{path.name} has no scaled.from: it says from no card how to make its kernels")
    stand_in = {"kernels": entry(source)["kernels"], "provenance": {"kernels": _STAND_IN}}
    kept = Tree({key: value for key, value in tree.value.items() if key not in stand_in}, tree.places)
    origins = {"provenance": tree.value.get("provenance") or {}}
    whole = kept.merged(from_python(origins, Place(path.name))).merged(
        from_python(stand_in, Place(path.name))
    )
    part = read_part("hardware", whole, default_folders(), faults)
    faults.raise_any()
    return {"name": path.stem, **part.value} if part else {}


_STAND_IN = {"kind": "estimated", "source": "to be made"}


_OF_THE_CHIP = ("residual", "kv_residual", "cached_below_bytes", "cached_bytes_per_s")


class _Scale:
    """The ratios between two cards, applied to sections of kernels."""

    def __init__(self, own: Mapping[str, Any], source: Mapping[str, Any], linked: Mapping[str, Any]) -> None:
        self.own, self.source, self.linked, self.how = own, source, linked, own["scaled"]
        bandwidth = "memory_bandwidth_bytes_per_s"
        self.memory = self.how.get("memory_bandwidth", own[bandwidth] / source[bandwidth])
        self.heads = self.how.get("heads", 1.0 / self._peaks("bf16"))
        links = own["link"]["bandwidth_bytes_per_s"] / linked["link"]["bandwidth_bytes_per_s"]
        self.link = self.how.get("link", links)

    def compute(self, dtype: str) -> float:
        """How many times as many flops a second."""
        return float(self.how.get("compute", self._peaks(dtype)))

    def _peaks(self, dtype: str) -> float:
        """The ratio of the peaks; types that one card does not compute in have the 16-bit one's."""
        pair = [card["peak_flops_per_s"] for card in (self.own, self.source)]
        name = dtype if all(dtype in peaks for peaks in pair) else "bf16"
        return float(pair[0][name] / pair[1][name])

    def sections(self, kernels: Mapping[str, Any]) -> dict[str, Any]:
        """*kernels* of the source but the collectives, as this card has them."""
        found: dict[str, Any] = {}
        for name, section in kernels.items():
            if name == "gemm":
                native = (dtype for dtype in section if dtype in self.own["peak_flops_per_s"])
                found[name] = {dtype: self._rates(section[dtype], self.compute(dtype)) for dtype in native}
            elif not name.startswith("all_reduce"):
                found[name] = self._rates(section, self.compute("bf16"))
        return found

    def collectives(self, kernels: Mapping[str, Any]) -> dict[str, Any]:
        """The all-reduces of *kernels* over this card's link."""
        found = {}
        for name in ("all_reduce", "all_reduce_eager"):
            if name in kernels and ("2" in kernels[name] or not self.how.get("ring")):
                most = self.how.get("link_gpus", math.inf)
                linked = (gpus for gpus in kernels[name] if int(gpus) <= most)
                found[name] = {gpus: self._group(kernels[name], gpus) for gpus in linked}
        return found

    def _group(self, section: Mapping[str, Any], gpus: str) -> dict[str, Any]:
        own = self._kept(section[gpus])
        if self.how.get("ring"):
            n, pair = int(gpus), section["2"]
            own = {"latency_s": own["latency_s"], "exponent": pair["exponent"]}
            own["bytes_per_s"] = pair["bytes_per_s"] * n / (2.0 * (n - 1.0))
        return _rounded({**own, "bytes_per_s": own["bytes_per_s"] * self.link})

    def _rates(self, section: Mapping[str, Any], compute: float) -> dict[str, Any]:
        factors = {"flops_per_s": compute, "bytes_per_s": self.memory, "quantise_bytes_per_s": self.memory,
                   "head_token_s": self.heads, "head_sequence_s": self.heads}  # fmt: skip
        kept = self._kept(section)
        return _rounded({**kept, **{key: kept[key] * by for key, by in factors.items() if key in kept}})

    def _kept(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """*section* without what only the measured chip has."""
        left_out = () if self.how.get("same_chip") else _OF_THE_CHIP
        return {key: copy.deepcopy(value) for key, value in section.items() if key not in left_out}

    def origin(self, name: str) -> dict[str, str]:
        """Where a section of kernels comes from, in words."""
        if name.startswith("all_reduce"):
            ring = ", of two GPUs and as in a ring for more" if self.how.get("ring") else ""
            words = f"{self.linked['name']}: bytes_per_s x {self.link:.4g}{ring}; the rest unchanged"
        else:
            words = (
                f"{self.source['name']}: flops_per_s x {self.compute('bf16'):.4g} (in 16 bits), bytes_per_s "
                f"x {self.memory:.4g}, times a head x {self.heads:.4g}; the rest unchanged"
            )
        residuals = "with" if self.how.get("same_chip") else "without"
        return {"kind": "estimated", "source": f"{words}, {residuals} its residuals"}


def _rounded(section: dict[str, Any]) -> dict[str, Any]:
    """Rates to four digits: no ratio of datasheets knows more."""
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in section.items()
    }
