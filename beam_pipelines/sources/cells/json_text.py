"""Parses JSON and rejects objects with repeated keys."""

import json
from typing import Any

from beam_pipelines.errors import printable


def read_json(text: str | bytes) -> Any:
    """Parses JSON. Rejects repeated keys, because programs interpret them differently.

    Raises:
        ValueError: The text is not JSON, or an object has a key twice.
        RecursionError: The JSON is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_distinct)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for position, name in enumerate(names) if name in names[:position])
        raise ValueError(f"the key {printable(name[:80])!r} occurs twice in an object")
    return members
