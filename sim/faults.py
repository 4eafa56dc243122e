"""Faults of the input: sentences for the person who wrote it, never a traceback."""

from __future__ import annotations

from collections.abc import Iterable


class InputFault(ValueError):
    """What the user gave cannot be used.

    *faults* is one sentence each: place, requirement, what came, what is possible. All faults of one
    input travel together, so that a file is mended in one go. The command line prints them on stderr
    and exits with status 2.
    """

    def __init__(self, faults: str | Iterable[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


def did_you_mean(word: str, possible: Iterable[str], *, show: int = 12) -> str:
    """The tail of a fault's sentence: the nearest of *possible* to *word*, or what there is."""
    import difflib

    names = sorted(possible)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    near = near or [name for name in names if word and name.startswith(f"{word}_")]
    if len(near) == 1:
        return f"; did you mean {near[0]}?"
    more = f", ... ({len(names)} in all)" if len(names) > show else ""
    return f"; possible: {', '.join(names[:show])}{more}" if names else ""
