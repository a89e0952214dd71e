"""Which module may import what: the arrows of the design, checked in fresh interpreters and in the source."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# They run in light processes or before Beam is needed.
PLAIN = (
    "accounting",
    "analysis_directory",
    "analysis_summary",
    "analyze_arguments",
    "annotations",
    "arguments",
    "array_cells",
    "array_values",
    "benchmark_arguments",
    "cells",
    "class_cells",
    "class_masks",
    "class_tables",
    "columns",
    "command_parser",
    "config",
    "cores",
    "dead_letters",
    "errors",
    "estimate",
    "examples",
    "extras",
    "files",
    "graph_failures",
    "image_arguments",
    "image_codecs",
    "image_config",
    "image_headers",
    "images",
    "input_errors",
    "input_reader",
    "interrupts",
    "keys",
    "label_lists",
    "left_run",
    "light_process",
    "light_processes",
    "list_part",
    "listed_values",
    "listing",
    "marked_directory",
    "metadata",
    "object_stores.retries",
    "object_stores.upload",
    "option_values",
    "output_directory",
    "plain_json",
    "plan",
    "plan_values",
    "progress",
    "publish",
    "quality",
    "quiet_imports",
    "ranks",
    "read_ahead",
    "rebuild",
    "record_index",
    "record_writer",
    "reference_runs",
    "references",
    "repair",
    "repair_arguments",
    "resize",
    "run_options",
    "sample",
    "shard_writer",
    "source_changes",
    "sources.annotated.coco",
    "sources.annotated.coco_annotations",
    "sources.annotated.coco_file",
    "sources.annotated.image_sets",
    "sources.annotated.json_sections",
    "sources.annotated.masks",
    "sources.annotated.voc",
    "sources.annotated.voc_annotation",
    "sources.annotated.voc_folders",
    "sources.arrays.array_columns",
    "sources.arrays.array_files",
    "sources.arrays.array_images",
    "sources.arrays.array_streams",
    "sources.arrays.cifar",
    "sources.arrays.fixed_length",
    "sources.arrays.idx",
    "sources.arrays.named_arrays",
    "sources.arrays.numpy_files",
    "sources.file_listing",
    "sources.guess",
    "sources.image_folder",
    "sources.image_objects",
    "sources.layouts",
    "sources.other_files",
    "sources.records.containers",
    "sources.records.example_reader",
    "sources.records.first_records",
    "sources.records.record_directories",
    "sources.records.record_fields",
    "sources.records.record_layouts",
    "sources.records.record_reader",
    "sources.records.row_reader",
    "sources.records.tar_reader",
    "sources.records.tar_samples",
    "sources.records.tfds_layouts",
    "sources.records.tfrecord",
    "sources.records.webdataset",
    "sources.roots",
    "sources.sizes",
    "sources.tables.lines",
    "sources.tables.parquet_rows",
    "sources.tables.table",
    "sources.tables.table_columns",
    "sources.tables.table_files",
    "sources.tables.table_objects",
    "sources.tables.table_rows",
    "sources.tables.text",
    "splits",
    "spool",
    "statistics",
    "summary",
    "texts",
    "transform_arguments",
    "transform_job",
    "transform_metadata",
    "user_preprocessing",
    "versions",
    "wanted_inputs",
    "write_context",
    "written_data_set",
)
OTHERS = (
    "__init__",
    "__main__",
    "catalog",
    "counters",
    "dataflow",
    "engines",
    "flink",
    "job_servers",
    "jobs",
    "launch",
    "listed",
    "object_stores.__init__",
    "object_stores.gcs",
    "object_stores.object_store",
    "object_stores.s3",
    "pipeline",
    "run_info",
    "shard_files",
    "sources.__init__",
    "sources.annotated.__init__",
    "sources.arrays.__init__",
    "sources.open_source",
    "sources.records.__init__",
    "sources.tables.__init__",
    "transform",
    "waiting",
)
# `recordmill analyze` and `recordmill transform`: their graph decodes images as the reader does, by the reader's own functions.
WITH_TENSORFLOW = ("analysis_trial", "analyze", "preprocessing", "record_batches", "tft_modules", "traced_preprocessing", "transform_shards")
PTRANSFORMS = ("list_images", "shuffle", "write_metadata", "write_shards")


def imported_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return set(run.stdout.split())


def import_statements(path: pathlib.Path) -> set[str]:
    """Full names of all that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_module_is_named_here():
    """So that a new one is put on one side of the line."""
    found = {
        ".".join(path.relative_to(ROOT / "beam_pipelines").with_suffix("").parts)
        for path in (ROOT / "beam_pipelines").rglob("*.py")
    }
    assert found == {*PLAIN, *PTRANSFORMS, *WITH_TENSORFLOW, *OTHERS}


def test_plain_modules_import_neither_beam_nor_tensorflow():
    loaded = imported_by("\n".join(f"import beam_pipelines.{name}" for name in PLAIN))
    assert not loaded & {"apache_beam", "tensorflow", "keras"}


def test_the_write_path_imports_no_tensorflow():
    loaded = imported_by("import beam_pipelines.launch, beam_pipelines.pipeline")
    assert "apache_beam" in loaded and not loaded & {"tensorflow", "keras", "tensorflow_transform"}


def test_a_wrong_option_is_answered_without_beam():
    statement = "from beam_pipelines.__main__ import main\nassert main(['prepare', '--input', '.', '--output', 'x', '--seed', '-1']) == 2"
    assert not imported_by(statement) & {"apache_beam", "tensorflow"}


def test_tf_input_alone_imports_neither_tensorflow_nor_numpy():
    assert not imported_by("import tf_input, tf_input.dataset_format") & {"tensorflow", "numpy", "apache_beam"}


def test_the_contract_needs_the_standard_library_alone():
    loaded = imported_by("import tf_input.dataset_format") - {"tf_input", "sitecustomize", "__main__", "__mp_main__"}
    bare = imported_by("pass")  # what the environment itself loads at start
    assert loaded - bare <= sys.stdlib_module_names


def test_ranges_are_read_without_tensorflow():
    modules = (path.stem for path in (ROOT / "tf_input" / "storage").glob("*.py"))
    loaded = imported_by("\n".join(f"import tf_input.storage.{name}" for name in modules if name != "__init__"))
    assert not loaded & {"tensorflow", "obstore", "fsspec", "boto3"}, "and what reads URLs is there when it is needed"


def test_a_trainer_imports_no_beam():
    loaded = imported_by("import tf_input\ntf_input.open, tf_input.PreparedDataset")
    assert "tensorflow" in loaded and not loaded & {"apache_beam", "beam_pipelines", "tensorflow_transform"}


@pytest.mark.parametrize("path", sorted((ROOT / "tf_input").rglob("*.py")), ids=lambda path: path.stem)
def test_tf_input_never_names_the_writer(path):
    assert not [name for name in import_statements(path) if name.startswith(("beam_pipelines", "apache_beam"))]


@pytest.mark.parametrize("path", sorted((ROOT / "beam_pipelines").rglob("*.py")), ids=lambda path: path.stem)
def test_the_writer_takes_from_tf_input_the_contract_alone(path):
    """The command line alone has one thing more, for `recordmill benchmark`, and imports it only there."""
    names = {name for name in import_statements(path) if name.startswith("tf_input")}
    if path == ROOT / "beam_pipelines/__main__.py":
        names.remove("tf_input.benchmark")
    if path.stem not in WITH_TENSORFLOW:
        assert all(name.startswith(("tf_input.dataset_format", "tf_input.transform_format")) for name in names), names


@pytest.mark.parametrize("path", sorted((ROOT / "beam_pipelines").rglob("*.py")), ids=lambda path: path.stem)
def test_few_modules_import_tensorflow(path):
    if path.stem not in WITH_TENSORFLOW:
        assert not [name for name in import_statements(path) if name.startswith(("tensorflow.", "tensorflow_transform", "tfx_bsl"))]


@pytest.mark.parametrize("name", PTRANSFORMS)
def test_ptransforms_never_import_each_other(name):
    others = tuple(f"beam_pipelines.{other}" for other in (*PTRANSFORMS, "pipeline", "launch", "__main__"))
    names = import_statements(ROOT / "beam_pipelines" / f"{name}.py")
    assert not [imported for imported in names if imported.startswith(others)]
