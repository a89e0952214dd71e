"""Computes names for a model's variables that stay the same when the model is built again, even in another process."""

import collections
import re
from typing import Any, Mapping, Sequence

import keras


def stable_names(model: keras.layers.Layer, variables: Sequence[Any]) -> list[str]:
    """Returns unique names of variables: their paths, in which automatic layer names are renumbered from 0.

    Keras's automatic layer names, such as `dense_7`, contain a number that increases throughout the process, so they
    change if a model is built again. Layer names chosen by the user are unchanged.

    Args:
        model: The model.
        variables: The variables of the model and of its optimizer.
    """
    of_model = {id(item) for item in model.variables}
    paths = dict.fromkeys(entry.path for entry in variables if id(entry) in of_model)
    stable = dict(zip(paths, _renumbered(model, [*paths])))
    flat = {path.replace("/", "_"): name for path, name in stable.items()}
    seen: collections.Counter[str] = collections.Counter()
    names = []
    for variable in variables:
        name = stable[variable.path] if id(variable) in of_model else _of_optimizer(variable.path, flat)
        names.append(f"{name}#{seen[name]}" if seen[name] else name)  # paths are not unique in nested models
        seen[name] += 1
    return names


def _renumbered(model: keras.layers.Layer, paths: Sequence[str]) -> list[str]:
    """Returns the paths of a model's variables, with automatic names renumbered from 0."""
    classes = {type(flatten_layer).__name__ for flatten_layer in model._flatten_layers()} | {"SeedGenerator"}
    bases = map(keras.src.utils.naming.to_snake_case, classes)
    automatic = re.compile(rf"({'|'.join(map(re.escape, bases))})(?:_(\d+))?")
    numbers: dict[str, set[int]] = collections.defaultdict(set)
    for path in paths:
        for match in filter(None, map(automatic.fullmatch, path.split("/")[:-1])):
            numbers[match[1]].add(int(match[2] or 0))
    ranks = {base: {number: rank for rank, number in enumerate(sorted(result))} for base, result in numbers.items()}

    def renumber(layer: str) -> str:
        match = automatic.fullmatch(layer)
        return f"{match[1]}_{ranks[match[1]][int(match[2] or 0)]}" if match else layer

    return ["/".join([*map(renumber, path.split("/")[:-1]), path.split("/")[-1]]) for path in paths]


def _of_optimizer(path: str, flat: Mapping[str, str]) -> str:
    """Returns the name of an optimizer variable. The path of an optimizer variable contains the path of a model
    variable, with "_" instead of "/"."""
    optimizer, _, name = path.partition("/")
    of_variable = max((item for item in flat if name.startswith(f"{item}_")), key=len, default="")
    return f"{re.sub(r'_[0-9]+$', '', optimizer)}/{flat.get(of_variable, '')}{name.removeprefix(of_variable)}"
