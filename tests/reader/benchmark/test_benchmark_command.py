"""Tests the output, the advice and the errors of `recordmill benchmark`."""

import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from beam_pipelines.__main__ import main
from prepared import mixed_images, prepare_images
from tf_input.benchmark.advice import Findings
from tf_input.benchmark.benchmark import table
from tf_input.benchmark.stages import Stage, time_shares
from tf_input.dataset_format import Feature
from tf_input.read_config import ReadConfig

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> pathlib.Path:
    """A dataset of images with different sizes."""
    return mixed_images(tmp_path_factory)


@pytest.fixture(scope="module")
def uniform(tmp_path_factory) -> pathlib.Path:
    """A dataset of images with the same size."""
    return prepare_images(tmp_path_factory.mktemp("uniform"), "--splits", "train=1", image_size=(24, 32))


def benchmark(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["benchmark", *map(str, arguments), "--seconds", "0.05"])
    return code, *capsys.readouterr()


def stages_of(stdout: str) -> list[str]:
    """Returns the first column of the printed table."""
    rows = stdout.partition("stage ")[2].partition("\n\n")[0].splitlines()[1:]
    assert all(re.fullmatch(r"\w+ +[\d,]+ +[\d,]+ +\d+%", row) for row in rows), rows
    assert len({len(row) for row in rows}) == 1, "columns are aligned"
    return [row.split()[0] for row in rows]


@pytest.mark.slow(2)
def test_prints_a_row_for_each_stage(mixed, capsys):
    code, stdout, _ = benchmark(capsys, mixed, "--batch_size", "16", "--image_size", "20x24", "--augment")
    assert code == 0
    assert re.match(
        r"train: \d+ images, 0\.\d MB in \d shards; batches of 16, 20 x 24 pixels, augmented, shuffle=\"window\"; ",
        stdout,
    )
    assert stages_of(stdout) == ["read", "parse", "decode", "augment", "batch"]
    assert re.search(
        r"^bottleneck: (read|parse|decode|augment|batch), \d+% .*; \d+% of the cores", stdout, re.M
    )


CASES = {
    "other split with exact order": (
        ["--split", "validation", "--shuffle", "exact"],
        "validation: ",
        'shuffle="exact"',
        ["read", "parse", "decode", "batch"],
    ),
    "no shuffle": (
        ["--shuffle", "none"],
        "train: ",
        "in the order of the shards",
        ["read", "parse", "decode", "batch"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_options_select_split_order_and_stages(mixed, capsys, case):
    options, split, order, stages = CASES[case]
    code, stdout, _ = benchmark(capsys, mixed, "--image_size", "16", "--batch_size", "8", *options)
    assert code == 0 and stdout.startswith(split) and order in stdout and stages_of(stdout) == stages


@pytest.mark.slow(2)
def test_measures_a_split_in_memory_and_advises_raw_encoding(uniform, capsys):
    code, stdout, _ = benchmark(capsys, uniform, "--batch_size", "16")
    assert code == 0 and stdout.startswith("Read train into memory in ")
    assert "24 x 32 pixels" in stdout, "images of equal size keep their size"
    assert stages_of(stdout) == ["gather", "resize", "batch"]
    code, stdout, _ = benchmark(capsys, uniform, "--batch_size", "16", "--cache_in_memory", "0")
    assert code == 0 and stages_of(stdout) == ["read", "parse", "decode", "batch"]
    assert f"cache_in_memory={110 * (24 * 32 * 3 + 8)} " in stdout
    command = re.search(r"recordmill (prepare .* --output (\S+) --image_encoding raw .*?)  ", stdout)
    assert main(shlex.split(command[1])) == 0, "the printed command works"
    code, stdout, _ = benchmark(capsys, command[2], "--batch_size", "16", "--cache_in_memory", "0")
    assert code == 0 and "recordmill prepare" not in stdout


INVALID_OPTIONS = {
    "no dataset": (["--batch_size", "8"], "manifest.json"),
    "split": (["--split", "test"], "split='test'"),
    "batch size": (["--batch_size", "0"], "batch_size=0"),
    "image size": (["--image_size", "0"], "--image_size=0"),
    "seconds": (["--seconds", "-1"], "--seconds=-1"),
    "shuffle": (["--shuffle", "mixed"], "--shuffle=mixed"),
    "memory budget": (["--cache_in_memory", "much"], "--cache_in_memory=much"),
    "unknown option": (["--image_format", "png"], "--image_format"),
}


@pytest.mark.parametrize("case", INVALID_OPTIONS)
def test_invalid_options_print_one_line(mixed, tmp_path, capsys, case):
    options, expected = INVALID_OPTIONS[case]
    code = main(["benchmark", str(tmp_path if case == "no dataset" else mixed), *options])
    stdout, error = capsys.readouterr()
    assert code == 2 and stdout == "" and error.count("\n") == 1, error
    assert error.startswith("recordmill: ") and expected in error, error


def test_error_names_the_corrupt_record(mixed, tmp_path, capsys):
    shutil.copytree(mixed, copy := tmp_path / "copy")
    shard = sorted(copy.glob("*train*"))[0]
    contents = bytearray(shard.read_bytes())
    contents[40] ^= 1
    shard.write_bytes(contents)
    code, _, error = benchmark(capsys, copy, "--image_size", "16")
    assert code == 1 and error.startswith("recordmill: ") and error.count("\n") == 1, error
    assert f"{shard}: record 0, at byte 0: " in error


def test_help_contains_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        main(["benchmark", "--help"])
    assert end.value.code == 0 and "recordmill benchmark out/flowers --batch_size 128" in capsys.readouterr().out


_WITHOUT_BEAM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("apache_beam", "pyarrow", "rich", "zstandard"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Missing())
from beam_pipelines.__main__ import run
run()
"""


@pytest.mark.slow(3)
def test_runs_without_beam_and_stops_on_interrupt(mixed):
    """The command prints no TensorFlow log messages, and Ctrl-C stops the command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    command = [sys.executable, "-c", _WITHOUT_BEAM, "benchmark", str(mixed), "--image_size", "16", "--seconds", "600"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout.readline().startswith("train: ")
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=240)
        finally:
            process.kill()
    warning, *others = error.splitlines()
    assert "antialias" in warning and (process.returncode, others) == (130, ["recordmill: Interrupted. Nothing was written."])


STAGES = [
    Stage("read", 10_000, 50e-6),
    Stage("parse", 12_000, 60e-6),
    Stage("decode", 1_000, 1900e-6),
    Stage("batch", 800, 2000e-6),
]


def test_table_has_speed_and_time_share_of_stages():
    assert time_shares(STAGES) == pytest.approx([0.0784, 0, 0.7190, 0.1961], abs=0.01)
    assert sum(time_shares(STAGES)) == pytest.approx(1)
    assert table(STAGES).splitlines()[:4] == [
        "stage   images/s  CPU µs/image  share of time",
        "read      10,000            50             8%",
        "parse     12,000            10             0%",
        "decode     1,000         1,840            72%",
    ]


PHOTOGRAPHS = Findings(
    directory="out/flowers",
    source="my flowers/",
    is_remote=False,
    split="train",
    num_examples=10_000,
    num_bytes=1_100_000_000,
    num_shards=8,
    image=Feature("image", "image"),
    formats={"jpeg": 10_000},
    stored_side=500,
    stored_size=None,
    decoded_bytes=None,
    is_cached=False,
    config=ReadConfig(batch_size=128, image_size=224, cache_in_memory=0),
    order="window",
)
SLOW_READ = [
    Stage("read", 500, 100e-6),
    Stage("parse", 490, 110e-6),
    Stage("decode", 450, 1500e-6),
    Stage("batch", 450, 1500e-6),
]
RESIZE = "recordmill prepare --input 'my flowers/' --output out/flowers_256 --image_size short=256"

# Changes to PHOTOGRAPHS, stages, expected advice, and unexpected advice.
ADVICE = {
    "large images": (
        {},
        STAGES,
        [RESIZE, "the cores are busy"],
        ["raw", "cache_in_memory=", "disk"],
    ),
    "images that would fit in memory": (
        {"config": ReadConfig(batch_size=128, image_size=48)},
        STAGES,
        ["--output out/flowers_48x48 --image_size exact=48x48", "69.1 MB", "its images differ in size"],
        ["short="],
    ),
    "images that would fit in memory, with crops": (
        {"config": ReadConfig(batch_size=128, image_size=(48, 96), augment=True)}, STAGES, ["exact=55x110"], ["short="]
    ),
    "uniform images that do not fit in memory": (
        {"decoded_bytes": 10_000 * 500 * 500 * 3, "stored_size": (500, 500), "config": ReadConfig(128, image_size=400)},
        STAGES,
        ["7,500 MB decoded, and cache_in_memory is 1,074 MB"],
        ["exact=", "short="],
    ),
    "images of the needed size": ({"stored_side": 256}, STAGES, ["the cores are busy"], ["--image_size"]),
    "slow disk": (
        {"stored_side": 256},
        SLOW_READ,
        ["the disk gives 55 MB/s"],
        ["exact", "cache_directory", "cores are busy:"],
    ),
    "object store": (
        {"is_remote": True, "directory": "gs://b/f"},
        SLOW_READ,
        ['tf_input.open("gs://b/f", cache_directory='],
        ["disk gives"],
    ),
    "exact order": ({"order": "exact"}, SLOW_READ, ['shuffle="exact" reads single records'], []),
    "PNG": (
        {"formats": {"png": 10_000}, "stored_side": 256},
        STAGES,
        ["--output out/flowers_jpeg --image_format jpeg:90"],
        ["raw"],
    ),
    "tiny images": (
        {"decoded_bytes": 10_000 * 32 * 32 * 3, "stored_side": 32, "stored_size": (32, 32), "num_bytes": 9_000_000},
        STAGES,
        [
            "cache_in_memory=30720000 ",
            "9 MB become about 31",
            "--output out/flowers_raw --image_encoding raw --image_size exact=32x32",
        ],
        ["short="],
    ),
    "raw images": (
        {"decoded_bytes": 10_000 * 32 * 32 * 3, "stored_size": (32, 32), "image": Feature("image", "pixels", (32, 32, 3))},
        STAGES,
        ["cache_in_memory=30720000"],
        ["recordmill prepare --input"],
    ),
    "in memory": (
        {"decoded_bytes": 30_720_000, "stored_size": (32, 32), "is_cached": True},
        STAGES,
        ["bottleneck: decode"],
        ["recordmill prepare", "cache_in_memory", "not cached"],
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice_depends_on_dataset_and_stages(case, monkeypatch):
    monkeypatch.setattr("tf_input.benchmark.advice.num_cores", lambda: 2)
    monkeypatch.setattr("tf_input.benchmark.advice._memory_bytes", lambda: 8 << 30)
    changes, stages, expected, unexpected = ADVICE[case]
    advice = dataclasses.replace(PHOTOGRAPHS, **changes).advise(stages)
    assert [text for text in expected if text not in advice] == [], advice
    assert [text for text in unexpected if text in advice] == [], advice


def test_source_of_the_advice_is_the_input_of_the_run(uniform):
    options = json.loads((uniform / "run.json").read_text())["options"]
    assert options["input"] == str(uniform.parent / "source"), "the advice contains this path"
