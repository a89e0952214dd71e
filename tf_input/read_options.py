"""The attributes of `ReadConfig` as typed keyword options, as in `batches("train", batch_size=128)`."""

import dataclasses
from typing import Any, Callable, Literal, Mapping, Sequence, TypedDict

from tf_input.read_config import Augmentation, Balancing, Fit, ImageSize, Interpolation, Padding, ReadConfig, ShuffleOrder
from tf_input.choices import Choice


class ReadOptions(TypedDict, total=False):
    """The attributes of `ReadConfig`, for type checkers. A test compares the two classes.

    Functions declare these options as `**options: Unpack[ReadOptions]`, and have the decorator
    `@named_options(ReadConfig)`.
    """

    batch_size: int
    image_size: ImageSize | Mapping[str, ImageSize | Literal["encoded"]] | Literal["largest", "encoded"] | None
    channels: int | None
    augment: bool | Augmentation
    shuffle: bool | ShuffleOrder | None
    seed: int | None
    drop_remainder: bool
    fit: Fit | None
    interpolation: Interpolation
    inputs: str | Sequence[str] | None
    targets: str | Sequence[str] | None
    padding: bool | int | Mapping[str, int | tuple[int, ...]] | Padding
    class_weight: str | Mapping[Any, Any] | None
    one_hot: bool | str | Sequence[str]
    with_keys: bool
    select: Choice | Sequence[Choice] | None
    balance: Balancing | Mapping[str, float] | None
    skip_corrupt: bool
    hosts: tuple[int, int] | None
    cache_in_memory: bool | int
    read_buffer: int
    transform: bool
    parse: Callable[..., Any] | None
    map_example: Callable[..., Any] | None
    map_batch: Callable[..., Any] | None


def make_config(config: ReadConfig | None, options: ReadOptions) -> ReadConfig:
    """Returns a config in which the options override the attributes of the given config.

    Raises:
        TypeError: The batch size is missing, or `config` is not a ReadConfig.
        ValueError: An option has a wrong value.
    """
    if config is None:
        if "batch_size" not in options:
            raise TypeError("batch_size is missing. Pass the number of examples in a batch, such as batch_size=128.")
        return ReadConfig(**options)
    if not isinstance(config, ReadConfig):
        raise TypeError(f"config={config!r} is not a ReadConfig. Pass options by name, such as batch_size=128.")
    return dataclasses.replace(config, **options)
