"""Encodes the features of the objects in an image: boxes, classes, numbers and points."""

from beam_pipelines.errors import InvalidInput
from beam_pipelines.features.feature_kind import EncodedExample, EncoderOptions
from beam_pipelines.features.kinds import kind_of
from beam_pipelines.images.annotations import Objects, transform_boxes
from tf_input.dataset_format import OBJECTS

_BOXES = f"{OBJECTS}/bbox"


class ObjectsEncoder:
    """Encodes the objects of images."""

    def __init__(self, options: EncoderOptions) -> None:
        self._source = options.source
        of_classes = [feature for feature in options.features.values() if feature.is_of_objects and feature.is_categorical]
        self._labels = {feature.name: {name: label for label, name in enumerate(feature.label_names)} for feature in of_classes}
        encoders = {name: kind_of(feature).object_encoder(feature) for name, feature in options.features.items() if feature.is_of_objects}
        self._encoders = {name: encode for name, encode in encoders.items() if encode}

    def __call__(self, value: Objects, example: EncodedExample) -> None:
        """Adds the features of objects to an example. Raises `InvalidInput` if an object is invalid."""
        try:
            placed = transform_boxes(value, example.geometry, self._source.bad_boxes, self._source.drawn_on)
        except InvalidInput as error:
            raise InvalidInput(error.reason, f"{error}{self._form_of_boxes(error)}") from None
        example.stored[_BOXES] = placed.boxes
        for flag, numbers in value.flags.items():
            example.stored[f"{OBJECTS}/{flag}"] = [numbers[index] for index in placed.kept]
        for name, labels in self._labels.items():
            classes = value.classes(name)
            example.stored[name] = [labels[classes[index]] for index in placed.kept]
        for name, encode in self._encoders.items():
            example.stored[name] = encode(value, placed.kept, example)
        example.nums |= {"num_dropped_boxes": placed.num_dropped, "num_clipped_boxes": placed.num_clipped}
        if value.boxes:
            example.note_rotation(value.image_size)

    def _form_of_boxes(self, error: InvalidInput) -> str:
        """Returns the box format as a suffix for an error message about a box, if the source supports several
        formats."""
        if error.reason != "bad_box" or self._source.kind is None or not self._source.kind.has_box_forms:
            return ""
        return f" (boxes are read as --box_format {self._source.box_format or 'xywh'} --box_unit {self._source.box_unit or 'pixels'})"
