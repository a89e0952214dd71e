"""The feature of foreign records in which their classes are."""

from typing import Any, NamedTuple, Sequence


class LabelFeature(NamedTuple):
    """Where the classes of an example are.

    Attributes:
        name: The name of the feature; empty: nobody knows it.
        is_flags: Whether it has a 0 or 1 for each class.
    """

    name: str
    is_flags: bool = False

    def classes(self, values: Sequence[Any]) -> list[Any]:
        """The class names of an example, from the feature's values."""
        return [place for place, value in enumerate(values) if value] if self.is_flags else list(values)
