"""Fills missing cells with the values of `--default`."""

from typing import Any, Collection, Mapping

import numpy as np

from beam_pipelines.errors import UserError, did_you_mean, printable


def fill_row(row: Mapping[str, Any], defaults: Mapping[str, str]) -> Mapping[str, Any]:
    """Replaces missing cells in a row by the default values of the columns."""
    missing = {name: value for name, value in defaults.items() if is_missing(row.get(name))}
    return {**row, **missing} if missing else row


def is_missing(cell: Any) -> bool:
    """Returns whether a cell is empty, blank, or NaN as pandas writes it for missing cells."""
    if isinstance(cell, (str, bytes)):
        return not cell.strip()
    return cell is None or isinstance(cell, (float, np.floating)) and cell != cell


def check_defaults(defaults: Mapping[str, str], used: Collection[str]) -> None:
    """Raises `UserError` if an option gives a default value for a column that is not used."""
    for name in defaults:
        if name not in used:
            names = ", ".join(map(printable, sorted(used)[:20]))
            option = f"--default={printable(name)}=…"
            raise UserError(
                f"{option}: no label, feature or role uses this column{did_you_mean(name, used) or '.'} Choose one of {names}."
            )
