"""Describes the result of `recordmill analyze`."""

import math
import os
from typing import Iterator

from beam_pipelines.errors import printable
from tf_input.dataset_format import Feature, main_split
from tf_input.regular_files import read_regular
from tf_input.transform.transform_format import TRANSFORM, TRANSFORM_FN, TransformInfo

_DTYPES = {"bytes": "string", "int64": "int64", "float": "float32"}
_CHANNELS = {1: ("grey",), 3: ("red", "green", "blue")}


def describe_analysis(directory: str) -> str:
    """Returns a short description of the examples and the outputs of an analysis."""
    info = TransformInfo.from_json(read_regular(f"{directory}/{TRANSFORM}").decode())
    return "\n".join(_lines(directory, info))


def _lines(directory: str, info: TransformInfo) -> Iterator[str]:
    width = max(len(feature.name) for feature in info.schema)
    yield f"analysed:   {info.num_examples:,} examples of {', '.join(info.splits)}"
    yield "outputs:"
    for feature in info.schema:
        yield f"  {feature.name.ljust(width)}  {_describe(feature)}"
    if info.channels:
        names = _CHANNELS.get(len(info.channels["mean"]), range(len(info.channels["mean"])))
        yield "channels:   mean and standard deviation of pixels, 0..255"
        for name, mean, variance in zip(names, info.channels["mean"], info.channels["variance"]):
            yield f"  {name!s:<5}  {mean:8.3f}  {math.sqrt(variance):8.3f}"
    assets = f"{directory}/{TRANSFORM_FN}/assets"
    for name in sorted(os.listdir(assets)) if os.path.isdir(assets) else ():
        with open(f"{assets}/{name}", "rb") as file:
            yield f"vocabulary: {printable(name)}, {sum(1 for _ in file):,} values"
    yield f"transform:  {printable(directory)}/{TRANSFORM_FN}"
    yield ""
    split = main_split(dict.fromkeys(info.splits, 0))
    yield "next, in Python:"
    yield "  import tf_input"
    yield f'  train = tf_input.open({directory!r}).batches({split!r}, batch_size=128, transform=True)'


def _describe(feature: Feature) -> str:
    sides = () if feature.is_picture else feature.shape
    shape = ", ".join("None" if side is None else str(side) for side in ("batch", *sides))
    return f"{_DTYPES[feature.storage]} [{shape}]"
