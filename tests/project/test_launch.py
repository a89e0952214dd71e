"""Tests the choice of the runner, the pipeline options, and the file run.json."""

import json
from fractions import Fraction

import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from google.protobuf import json_format

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import UserError
from beam_pipelines.publish.written_dataset import read_run
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
from beam_pipelines.sources.registry import find_kind
from made_images import write_class_folders


@pytest.mark.parametrize("flags", [[], ["--runner=DirectRunner"], ["--runner=FnApiRunner"]])
def test_local_runner_is_fixed_and_passes_options_to_workers(flags):
    """`DirectRunner` would try to download an engine. A runner created by name would not pass options to workers."""
    processes = ["--direct_num_workers=3", "--direct_running_mode=multi_processing"]
    options = parse_pipeline_options([*flags, *processes, "--temp_location=scratch"])
    runner = choose_engine(options).make_runner()
    assert type(runner) is FnApiRunner
    sent = json_format.MessageToDict(runner._provision_info.provision_info.pipeline_options)
    assert sent["beam:option:direct_num_workers:v1"] == "3", sent
    assert sent["beam:option:temp_location:v1"] == "scratch", sent


def test_worker_processes_are_used_only_with_a_single_in_memory_worker():
    cases = {
        "default": ([], True),
        "local runner by name": (["--runner=DirectRunner"], True),
        "multiple processes": (["--direct_num_workers=2", "--direct_running_mode=multi_processing"], False),
        "multiple threads": (["--direct_num_workers=2", "--direct_running_mode=multi_threading"], False),
        "cluster": (["--runner=FlinkRunner"], False),
    }
    for case, (flags, expected) in cases.items():
        assert bool(choose_engine(parse_pipeline_options(flags)).num_processes) is expected, case


def test_unknown_pipeline_option_is_rejected():
    with pytest.raises(UserError, match="unknown option --direct_workers"):
        parse_pipeline_options(["--direct_workers=2"])


def test_run_json_records_how_the_dataset_was_made(tmp_path):
    write_class_folders(tmp_path / "in", {"ant": 3, "bee": 3})
    command = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits", "train=1"]
    assert main([*command, "--seed", "5", "--direct_num_workers=1"]) == 0
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["started"] <= run["finished"] and run["host"] and run["python"].startswith("3.")
    assert {"apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c", "pyarrow"} <= set(run["versions"])
    expected = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out"), "name": "out", "seed": "5", "source": "image_folder", "splits": "train=1"}
    assert run["options"] == expected
    recorded = read_run((tmp_path / "out" / "run.json").read_bytes())
    options = PrepareOptions(str(tmp_path / "in"), str(tmp_path / "out"), "out", seed=5, splits={"train": Fraction(1)}, source=SourceConfig(kind=find_kind("image_folder")))
    assert recorded.options == options and len(run["run_id"]) == 32
    assert (recorded.python, recorded.versions) == (run["python"], run["versions"])
