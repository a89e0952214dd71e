"""Values in place of missing cells, as `--default` states them."""

from typing import Any, Collection, Mapping

import numpy as np

from beam_pipelines.errors import UserError, did_you_mean, printable


def fill_row(row: Mapping[str, Any], defaults: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns a row in which the default of a column stands in place of a missing cell."""
    missing = {name: value for name, value in defaults.items() if _is_missing(row.get(name))}
    return {**row, **missing} if missing else row


def _is_missing(cell: Any) -> bool:
    """Whether a cell has nothing: no value, blanks alone, or NaN, which pandas writes for nothing."""
    if isinstance(cell, (str, bytes)):
        return not cell.strip()
    return cell is None or isinstance(cell, (float, np.floating)) and cell != cell


def check_defaults(defaults: Mapping[str, str], used: Collection[str]) -> None:
    """Checks that each default is for a column that is used.

    Raises:
        UserError: One is not.
    """
    for name in defaults:
        if name not in used:
            expected = f"one of {', '.join(map(printable, sorted(used)[:20]))}{did_you_mean(name, used)}"
            option = f"--default={printable(name)}=…"
            raise UserError(f"{option}: no label, feature or role uses this column; expected {expected}")
