"""Checks which Recordmill packages a package may import, and which libraries it may load."""

import ast
import functools
import os
import pathlib
import subprocess
import sys
from typing import Mapping

import pytest

import forked_python

ROOT = pathlib.Path(__file__).parents[1]

# Packages that each package may import. `base` are modules for all packages, and `top` are modules that combine packages.
BASE = {
    "beam_pipelines": {"errors", "log", "quiet"},
    "tf_input": {"choices", "coordinate_names", "cores", "dataset_format", "example_values", "first_records", "image_files", "lazy_tensorflow", "option_checks", "options", "process", "quiet", "read_config", "read_options", "record_layouts", "regular_files", "serialized_example", "stored_kinds"},
}
IMPORTS = {
    "beam_pipelines": {
        "top": "options columns config runners sources splits shuffle shards publish repair transform verify quality leaks export report elements parallel storage",
        "options": "sources publish elements config storage",
        "runners": "publish config parallel storage",
        "repair": "runners sources splits shuffle shards publish elements config tfrecord parallel storage",
        "leaks": "sources shards publish elements images config tfrecord parallel storage",
        "verify": "features runners publish elements images config tfrecord parallel storage",
        "export": "features runners sources publish images config tfrecord parallel storage",
        "quality": "sources elements config tfrecord parallel storage",
        "transform": "runners shards publish columns elements config tfrecord parallel storage",
        "sources": "features columns elements images config tfrecord parallel storage",
        "splits": "elements images config parallel storage",
        "shuffle": "columns elements config parallel storage",
        "shards": "features elements images config tfrecord parallel storage",
        "publish": "features report elements config parallel storage",
        "report": "features elements images config tfrecord parallel storage",
        "elements": "images columns config storage",
        "images": "config",
        "config": "columns storage",
        "tfrecord": "storage",
        "features": "elements images config tfrecord storage",
        "columns": "",
        "parallel": "storage",
        "storage": "",
        "base": "",
    },
    "tf_input": {
        "training": "top pipeline decoding epochs",
        "loaders": "pipeline features epochs",
        "serving": "top decoding features storage",
        "foreign": "top pipeline decoding storage epochs",
        "inspection": "top features selection storage",
        "benchmark": "top pipeline epochs storage",
        "top": "loaders pipeline selection transform decoding features storage epochs",
        "pipeline": "decoding storage epochs",
        "selection": "storage epochs",
        "transform": "decoding features storage",
        "decoding": "features storage",
        "features": "",
        "storage": "epochs",
        "epochs": "",
        "base": "",
    },
}
STAGES = {"sources", "splits", "shuffle", "shards", "publish"}

# Modules that writer and reader share.
SHARED = ("tf_input.coordinate_names", "tf_input.cores", "tf_input.dataset_format", "tf_input.example_values", "tf_input.first_records", "tf_input.image_files", "tf_input.process", "tf_input.record_layouts", "tf_input.regular_files", "tf_input.serialized_example", "tf_input.storage.credentials", "tf_input.storage.paths", "tf_input.stored_kinds")
WITH_NUMPY = ("tf_input.example_values", "tf_input.image_files")
READER_COMMANDS = ("tf_input.benchmark.benchmark", "tf_input.training.which", "tf_input.inspection.inspection")

# Packages that worker processes use, and that are loaded before Beam.
PLAIN = ("options", "config", "images", "elements", "tfrecord")
PLAIN_MODULES = ("sources.listing.part_listing", "shards.shard_writer", "shards.hash_some", "leaks.hash_records", "parallel.worker_processes", "publish.output")


@functools.cache
def modules() -> Mapping[str, pathlib.Path]:
    """Returns a mapping from the full name of each Recordmill module to its path."""
    paths = (path for package in IMPORTS for path in (ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@functools.cache
def imports_of(path: pathlib.Path) -> frozenset[str]:
    """Returns the full names of all modules that a file imports."""
    actual = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            actual |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                actual.add(name if name in modules() or node.module not in modules() else node.module)
    return frozenset(actual)


def package_of(name: str) -> str:
    package, *others = name.split(".")
    if not others or (len(others) == 1 and modules()[name].name != "__init__.py"):
        return "base" if others and others[0] in BASE[package] else "top"
    return others[0]


def packages_loaded_by(statement: str, *first: str) -> set[str]:
    """Imports the modules in `first`, runs a statement and returns the names of the loaded packages."""
    code = f"{statement}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    if first:
        return set(forked_python.run("-c", code, env={**os.environ, "PYTHONPATH": str(ROOT)}, preloaded=first).stdout.split())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return set(run.stdout.split())


def test_packages_import_only_lower_packages():
    for name, path in modules().items():
        package = name.partition(".")[0]
        if name == "tf_input":  # imports public names from all packages
            continue
        allowed = {package_of(name), "base", *IMPORTS[package][package_of(name)].split()}
        packages = {package_of(other): other for other in imports_of(path) if other.startswith(f"{package}.")}
        assert set(packages) <= allowed, f"{name} imports {[other for at, other in packages.items() if at not in allowed]}"
    for package, table in IMPORTS.items():
        below = {at: set(others.split()) for at, others in table.items()}
        assert not any(below.get(stage, set()) & STAGES for stage in STAGES if package == "beam_pipelines")
        while free := [at for at, others in below.items() if not others]:
            below = {at: others - set(free) for at, others in below.items() if at not in free}
        assert not below, f"{package}: packages import each other in a cycle: {sorted(below)}"


def test_modules_do_not_import_each_other_in_a_cycle():
    below = {name: imports_of(path) & set(modules()) - {"tf_input", name} for name, path in modules().items()}
    while free := [name for name, others in below.items() if not others]:
        below = {name: others - set(free) for name, others in below.items() if name not in free}
    assert not below, sorted(below)


def test_reader_does_not_import_writer_and_writer_only_shared_modules():
    for name, path in modules().items():
        others = imports_of(path)
        if name.startswith("tf_input"):
            assert not [other for other in others if other.startswith(("beam_pipelines", "apache_beam"))], name
        elif package_of(name) != "transform":  # `transform` decodes images with the reader
            allowed = {*SHARED, *(READER_COMMANDS if name.endswith(".commands") else [])}
            assert {other for other in others if other.startswith("tf_input")} <= allowed, name


def test_plain_packages_load_neither_beam_nor_tensorflow():
    packages = [f"beam_pipelines.{at}." for at in PLAIN]
    names = [name for name in modules() if name.startswith(tuple(packages))] + [f"beam_pipelines.{name}" for name in PLAIN_MODULES]
    assert not packages_loaded_by("\n".join(f"import {name}" for name in names)) & {"apache_beam", "tensorflow", "keras"}
    wrong = "from beam_pipelines.__main__ import main\nassert main(['prepare', '--input', '.', '--output', 'x', '--seed', '-1']) == 2"
    assert not packages_loaded_by(wrong) & {"apache_beam", "tensorflow"}, "a wrong option is reported before Beam is loaded"


def test_declarations_of_source_formats_need_only_numpy():
    """Commands that read datasets work without the extra `beam`, although their parser lists all source formats."""
    loaded = packages_loaded_by("from beam_pipelines.sources.registry import source_classes\nsource_classes()")
    assert not loaded & {"apache_beam", "defusedxml", "ijson", "pyarrow", "simplejpeg", "yaml", "PIL", "pycocotools"}


@pytest.mark.slow(4)
def test_tensorflow_is_loaded_only_if_needed():
    written = packages_loaded_by("import beam_pipelines.launch, beam_pipelines.pipeline", *forked_python.BEAM)
    assert "apache_beam" in written and not written & {"tensorflow", "keras", "tensorflow_transform"}
    read = packages_loaded_by("import tf_input\ntf_input.open, tf_input.PreparedDataset")
    assert not read & {"tensorflow", "keras", "apache_beam", "beam_pipelines"}
    assert not packages_loaded_by("import tf_input.inspection.inspection") & {"tensorflow", "pyarrow"}
    shared = packages_loaded_by(f"import tf_input, {', '.join(name for name in SHARED if name not in WITH_NUMPY)}")
    assert not shared & {"tensorflow", "numpy", "apache_beam"}
    assert shared - packages_loaded_by("pass") - {"tf_input"} <= sys.stdlib_module_names
    ranges = [name for name in modules() if name.startswith("tf_input.storage.")]
    assert not packages_loaded_by("\n".join(f"import {name}" for name in ranges)) & {"tensorflow", "obstore", "fsspec", "boto3"}
