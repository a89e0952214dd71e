"""Encodes and decodes predict requests and responses of TensorFlow Serving's REST API.

A request contains a list of rows, {"instances": [...]}, or a dictionary of columns, {"inputs": ...}. Bytes are encoded
as {"b64": "..."}. The client and the server use this module, which requires only the standard library.
"""

import base64
import binascii
from typing import Any, Mapping, Sequence


def make(images: Sequence[bytes]) -> dict[str, Any]:
    """Returns a predict request that classifies image files."""
    return {"instances": [{"image": {"b64": base64.b64encode(image).decode()}} for image in images]}


def signature_name(call: Any) -> str:
    """Returns the name of the requested signature. Raises ValueError if the request is invalid."""
    if not isinstance(call, Mapping) or ("instances" in call) == ("inputs" in call):
        raise ValueError('the request needs either {"instances": [...]} or {"inputs": ...}')
    return call.get("signature_name", "serving_default")


def parse(call: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Decodes the inputs of a request.

    Args:
        call: The decoded JSON of the request.
        names: The names of the signature's inputs. If there is one input, a row may be its bare value.

    Returns:
        The values of each input by name, one value for each row. Base64 values are decoded to bytes.

    Raises:
        ValueError: The inputs are missing or have other names. The message states the expected names.
    """
    only = names[0] if len(names) == 1 else None
    if "instances" in call:
        rows = call["instances"]
        if not isinstance(rows, list) or not rows:
            raise ValueError("instances must be a list with at least one item")
        rows = [_named(row, only) for row in rows]
        if not all(isinstance(row, dict) and set(row) == set(names) for row in rows):
            raise ValueError(f"instances: each item needs exactly the inputs {', '.join(names)}")
        return {name: [_decoded(row[name]) for row in rows] for name in names}
    columns = _named(call["inputs"], only)
    if not isinstance(columns, dict) or set(columns) != set(names):
        raise ValueError(f"inputs needs exactly the inputs {', '.join(names)}")
    return {name: _decoded(columns[name]) for name in names}


def answer(call: Mapping[str, Any], outputs: Mapping[str, list]) -> dict[str, Any]:
    """Returns the response to a request, in the same format (rows or columns) as the request."""
    columns = {name: _json_value(outputs[name]) for name in sorted(outputs)}
    only = next(iter(columns.values())) if len(columns) == 1 else None
    if "inputs" in call:
        return {"outputs": columns if only is None else only}
    return {"predictions": [dict(zip(columns, row)) for row in zip(*columns.values())] if only is None else only}


def _named(value: Any, only: str | None) -> Any:
    return value if only is None or (isinstance(value, dict) and "b64" not in value) else {only: value}


def _decoded(value: Any) -> Any:
    """Replaces each {"b64": ...} in a JSON value with the decoded bytes."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        (text,) = value.values()
        return base64.b64decode(text, validate="b64" in value)
    except (ValueError, TypeError, binascii.Error):
        raise ValueError('bytes must be given as {"b64": "..."} with valid base64') from None


def _json_value(value: Any) -> Any:
    """Returns a value for JSON. Bytes are converted to text, or to base64 if they are not valid UTF-8."""
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
