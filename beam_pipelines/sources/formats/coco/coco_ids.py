"""Reads the ids in a COCO file."""

import json
import re
from typing import Any

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


def read_id(value: Any) -> int | str | None:
    """Converts the id of an image or a category to an integer or a string. Returns None if the id is invalid.

    The integer 7 may also be written as 7.0 or "7".
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return int(value) if _INTEGER.fullmatch(value) else value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def shown(value: Any) -> str:
    """Formats a value for a message as JSON of at most 80 characters."""
    return json.dumps(value)[:80]
