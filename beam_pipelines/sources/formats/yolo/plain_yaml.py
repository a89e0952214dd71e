"""Parses untrusted YAML into strings, lists and dictionaries.

All scalars remain strings, so that the class name `no` does not become a boolean. Aliases and deep nesting are
rejected, because a small file could expand to gigabytes. Tags, which can create Python objects, and repeated keys are
also rejected.
"""

from typing import Any, Iterator

import yaml

_MAX_DEPTH = 8
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # Some builds of PyYAML lack the parser in C.
_NULLS = ("", "~", "null", "Null", "NULL")
_FRAME = (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentStartEvent, yaml.DocumentEndEvent)


def parse_yaml(text: str) -> Any:
    """Returns the content of a YAML document as strings, lists, dictionaries with string keys, and None.

    Raises:
        ValueError: The text is not YAML, contains several documents, or uses a feature that is not allowed.
    """
    # Events are parsed lazily, so that `_read` rejects deep nesting before libyaml spends minutes on it.
    events = (event for event in yaml.parse(text, Loader=_LOADER) if not isinstance(event, _FRAME))
    try:
        first = next(events, None)
        content = None if first is None else _read(first, events, _MAX_DEPTH)
        if next(events, None) is not None:
            raise ValueError("contains several YAML documents")
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())[:200]}") from None
    return content


def _read(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Any:
    """Returns the value that starts with `event`."""
    line = f"line {event.start_mark.line + 1}"
    if isinstance(event, yaml.AliasEvent):
        raise ValueError(f"{line} has an alias (*), which is not allowed")
    if event.tag:
        raise ValueError(f"{line} has the tag {event.tag[:80]!r}, which is not allowed")
    if isinstance(event, yaml.ScalarEvent):
        return None if event.implicit[0] and event.value in _NULLS else event.value
    if depth == 0:
        raise ValueError(f"{line} is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_read(event, events, depth - 1))
        return items
    mapping: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent):
            raise ValueError(f"line {event.start_mark.line + 1} has a key that is not a text")
        if event.value in mapping:
            raise ValueError(f"line {event.start_mark.line + 1} repeats the key {event.value[:80]!r}")
        mapping[event.value] = _read(next(events), events, depth - 1)
    return mapping
