"""Names of a model's variables that are the same when the same script builds the model again, in this process or in another."""

import collections
import re
from typing import Any, Sequence

import keras


def stable_names(model: keras.layers.Layer, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> list[str]:
    """Returns a unique name for each variable: its path, in which the numbers of automatic names count from 0 within the model.

    Keras numbers automatic names, such as `dense_7`, through the whole process, so that a model that is built twice has other names the
    second time. Names that the user gave to layers stay as they are.

    Args:
        model: The model.
        optimizer: Its optimizer.
        variables: Variables of both.
    """
    classes = {type(one).__name__ for one in (*model._flatten_layers(), optimizer)} | {"SeedGenerator"}
    bases = sorted(map(keras.src.utils.naming.to_snake_case, classes), key=len, reverse=True)  # the longest first: conv2d_transpose
    automatic = re.compile(rf"(?<![^/_])({'|'.join(map(re.escape, bases))})(?:_(\d+))?(?![^/_])")
    numbers: dict[str, set[int]] = collections.defaultdict(set)
    for variable in variables:
        for base, number in automatic.findall(variable.path):
            numbers[base].add(int(number or 0))
    ranks = {base: {number: rank for rank, number in enumerate(sorted(found))} for base, found in numbers.items()}

    def renumber(match: re.Match[str]) -> str:
        return f"{match[1]}_{ranks[match[1]][int(match[2] or 0)]}"

    seen: collections.Counter[str] = collections.Counter()
    names = []
    for variable in variables:
        path = automatic.sub(renumber, variable.path)
        names.append(f"{path}#{seen[path]}" if seen[path] else path)  # nested models may use a path twice
        seen[path] += 1
    return names
