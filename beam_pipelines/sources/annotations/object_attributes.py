"""Reads the attributes of objects, such as the color of a car, that `--label` selects in addition to the objects."""

from typing import Any, Collection, Mapping, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.columns.forms import form_of
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.cells.cells import is_missing, read_float, read_integer
from beam_pipelines.sources.cells.class_cells import known, read_class
from tf_input.dataset_format import LABEL, OBJECTS

NO_VALUE = "none"  # the class of an object without the attribute
_READERS = {float: read_float, int: read_integer}


class ObjectAttributes:
    """The attributes of objects that are stored.

    Args:
        columns: The columns that name the attributes.
        source: The options of the source, with the allowed class names.
        flags: The names of the other features of objects.

    Attributes:
        columns: The columns that name the attributes.
        kinds: A mapping from the name of each feature, without the prefix `objects/`, to its kind.

    Raises:
        UserError: An attribute has a kind other than class, integer and float, or the name of another feature.
    """

    def __init__(self, columns: Sequence[Column], source: SourceConfig, flags: Collection[str]) -> None:
        self.columns = columns
        self.kinds = {column.name: form_of(column).kind for column in columns}
        self._allowed = {column.name: source.names_of(f"{OBJECTS}/{column.name}") for column in columns}
        for column in columns:
            form, name = form_of(column), printable(column.names[0])
            if len(column.names) > 1 or column.shape or not (form.is_class or form.value_type in _READERS):
                advice = f"Use {name}, {name}:integer or {name}:float"
                raise UserError(f"--label={name}:{column.kind}: an attribute of objects is one class or number. {advice}.")
            if column.name in ("bbox", "corners", "keypoints", LABEL, *flags):
                advice = f"Rename it, such as --label my_{column.name}={name}"
                raise UserError(f"--label={column.name}: objects already have this feature. {advice}.")

    def check_names(self, found: Collection[str]) -> None:
        """Raises `UserError` if an attribute is not in `found`, the names of the attributes in the first annotations."""
        for column in self.columns:
            if column.names[0] not in found:
                names = ", ".join(map(printable, sorted(found))) or "none"
                raise UserError(f"--label={printable(column.names[0])}: no object has this attribute. The attributes are: {names}.")

    def read(self, values: Mapping[str, Any]) -> dict[str, float | str]:
        """Returns the values of the features of an object, given all its attributes. Raises `InvalidInput` if a value is
        invalid, or an attribute with a number is missing."""
        read: dict[str, float | str] = {}
        for column in self.columns:
            value, reader = values.get(column.names[0]), _READERS.get(form_of(column).value_type)
            try:
                if reader:
                    read[column.name] = reader(value)
                else:
                    read[column.name] = known(NO_VALUE if is_missing(value) else read_class(value), self._allowed[column.name])
            except InvalidInput as error:
                raise InvalidInput(error.reason, f"has an invalid attribute {printable(column.names[0])!r}: {error}") from None
        return read
