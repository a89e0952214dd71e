"""Source `voc`: boxes from Pascal VOC's XML files, with one XML file per image."""

from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.sources.annotations.annotation_source import Annotation
from beam_pipelines.sources.annotations.paired_files import PairedNames
from beam_pipelines.sources.annotations.paired_source import PairedSource
from beam_pipelines.sources.files.label_files import reject_other_format
from beam_pipelines.sources.formats.voc.voc_annotation import parse_annotation
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from tf_input.dataset_format import OBJECTS


class Voc(PairedSource):
    """Lists the images below the root folder together with their boxes."""

    kind = SourceKind(
        name="voc",
        summary="Pascal VOC",
        options=("labels", "label_names", "bad_boxes", "drawn_on"),
        synonyms=("pascal", "pascal_voc", "xml"),
    )
    flags = {"is_difficult": "integer", "is_truncated": "integer"}
    names = PairedNames(".xml", ("annotations", "annotation", "xmls", "xml"), lists="Main")
    file_kind = "XML file"
    image_name_field = "<filename>"

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises a folder of annotations with XML files, or XML files beside images, also in split folders."""
        annotations = names.folder("annotations")
        for folder in filter(None, (annotations, names, *names.below)):
            if name := folder.find("*.xml"):
                reject_other_format(f"{folder.path}/{name}")
                return Recognition(name, Certainty.LAYOUT if folder is annotations else Certainty.EXTENSION)
        return None

    def parse(self, data: bytes) -> Annotation:
        """Parses an XML file. Raises `InvalidInput` if the file is invalid."""
        annotation = parse_annotation(data, self._label_names)
        if not self._has_objects:
            return Annotation(annotation.file_name)
        return Annotation(annotation.file_name, {OBJECTS: annotation.objects}, others=annotation.others)
