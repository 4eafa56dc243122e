"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class Folder(click.ParamType):
    """A folder's name, which an empty text is not (it would be the one where one works)."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value).strip():
            self.fail("must name a folder (got an empty text)", param, ctx)
        return Path(value)


scenario_name = click.argument("scenario", metavar="SCENARIO")
changes_to_it = click.argument("changes", nargs=-1, metavar="[key=value ...]")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
out_directory = click.option("--out", metavar="DIR", type=Folder(), help="Write the result's files there.")
