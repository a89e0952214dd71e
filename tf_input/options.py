"""A decorator for functions with keyword options, which suggests corrections for misspelled options."""

import difflib
import functools
import inspect
from typing import Any, Callable, Collection, Iterable, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def named_options(config: type | None = None, *, without: Collection[str] = ()) -> Callable[[_F], _F]:
    """Returns a decorator that makes functions or classes suggest similar names for misspelled options.

    Examples:
        ```python
        @named_options(ReadConfig)
        def batches(self, split: str, config: ReadConfig | None = None, **options: Unpack[ReadOptions]) -> tf.data.Dataset:
        ```

    Args:
        config: A dataclass whose attributes are the function's `**options`. They appear with types and defaults in the
            signature that `help`, shells and notebooks show. Type checkers read `ReadOptions` instead.
        without: Attributes that the function does not accept. The signature omits them, and the function itself rejects
            them.

    Raises:
        TypeError: Raised by the decorated function if an option does not exist.
    """

    def decorate(function: _F) -> _F:
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)  # type: ignore[misc]
            return function
        shown = _spelled_out(inspect.signature(function), config, without)
        names = [name for name, parameter in shown.parameters.items() if parameter.kind in _NAMED and name != "self"]
        owner = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            for name in options:
                if name not in names and name not in without:
                    raise TypeError(
                        f"{owner}() has no option "
                        f"{name!r}{suggest_option(name, names) or '. Its options are ' + ', '.join(names)}"
                    )
            return function(*arguments, **options)

        call.__signature__ = shown  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


# Option names in other libraries that are not spelled like the equivalent option here.
_ELSEWHERE = {
    **dict.fromkeys(("target_size", "img_size", "input_shape", "image_shape", "size", "resize", "resolution"), "image_size"),
    **dict.fromkeys(("color_mode", "num_channels", "grayscale", "rgb"), "channels"),
    **dict.fromkeys(("label_mode", "class_mode", "categorical"), "one_hot"),
    **dict.fromkeys(("crop_to_aspect_ratio", "pad_to_aspect_ratio", "resize_mode", "keep_aspect_ratio"), "fit"),
    **dict.fromkeys(("antialias", "resample", "method"), "interpolation"),
    **dict.fromkeys(("random_seed", "random_state"), "seed"),
    **dict.fromkeys(("maxlen", "max_length", "pad_to_length", "padded_shapes", "padding_values", "pad_value", "ragged"), "padding"),
    **dict.fromkeys(("drop_last", "drop_final_batch"), "drop_remainder"),
    **dict.fromkeys(("buffer_size", "shuffle_buffer"), "read_buffer"),
    **dict.fromkeys(("cache", "in_memory", "memory_budget"), "cache_in_memory"),
    **dict.fromkeys(("validation_split", "cross_validation", "where", "filter", "fold", "subset", "indices"), "select"),
    **dict.fromkeys(("rotation_range", "horizontal_flip", "random_flip", "augmentation", "transforms"), "augment"),
    **dict.fromkeys(("num_shards", "shard", "rank", "world_size"), "hosts"),
}


def suggest_option(name: Any, names: Iterable[str]) -> str:
    """Returns a suggestion such as "Did you mean 'batch_size'?", or "" if no option has a similar name.

    If the unknown option belongs to another library, the equivalent option is suggested. Otherwise, the option with the
    most similar name is suggested.
    """
    names = list(names)
    near = [elsewhere] if (elsewhere := _ELSEWHERE.get(str(name))) in names else difflib.get_close_matches(str(name), names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _spelled_out(signature: inspect.Signature, config: type | None, without: Collection[str]) -> inspect.Signature:
    """Returns a signature with the attributes of `config` instead of the parameter `**options`."""
    if config is None:
        return signature
    *first, options = signature.parameters.values()
    assert options.kind is inspect.Parameter.VAR_KEYWORD, signature
    fields = [field for name, field in inspect.signature(config).parameters.items() if name not in without]
    return signature.replace(parameters=[*first, *(field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields)])
