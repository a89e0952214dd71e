"""Tests that each extra works with the lowest versions that pyproject.toml declares.

For each release, these tests are run once with `make test-lowest`. For packages that pyproject.toml does not list, the
newest versions are installed.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib
from typing import Iterator, NamedTuple

import numpy as np
import pytest

from object_stores import connected_to, shared_server, upload_files
from prepared import mixed_images, picture

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NOT_TESTED = {"test": "it installs the other extras and test tools, with the versions of deploy/constraints.txt"}

READ = """
import sys, tf_input
options = {"transform": True} if "transform" in sys.argv else {"image_size": 24}
images, labels = next(iter(tf_input.open(sys.argv[1]).batches("train", batch_size=8, **options)))
print("images of shape", images.shape)
"""
TRAIN = """
import keras, tf_input

data = tf_input.open("out")
train = data.batches("train", batch_size=8, image_size=24, augment=True, seed=0)
inputs, outputs = keras.Input((24, 24, 3), dtype="uint8"), keras.layers.Dense(3, activation="softmax")
model = keras.Sequential([inputs, data.normalization_layer(), keras.layers.Flatten(), outputs])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
backup = tf_input.BackupAndRestore("backup", train)
model.fit(train, epochs=2, callbacks=[backup], class_weight=data.class_weight(), verbose=0)
sequence = tf_input.Sequence(data, "train", batch_size=8, image_size=24, seed=0)
model.fit(sequence, epochs=1, shuffle=False, verbose=0)
tf_input.export_serving(model, train, "served/1")
predictions = data.predict(model, "validation", batch_size=8, image_size=24)
print("classes predicted:", len(predictions["predicted"]))
"""
LOADERS = """
import glob, grain, tensorflow_datasets, tf_input, webdataset

train = tf_input.open("out")["train"]
batches = grain.MapDataset.source(train).shuffle(seed=3).map(lambda example: {"key": example["key"]}).batch(8)
assert len({key for batch in batches.to_iter_dataset() for key in batch["key"]}) == len(train)
assert len(list(tensorflow_datasets.builder_from_directory("out").as_dataset(split="train"))) == len(train)
shards = sorted(glob.glob("exported/**/*train*.tar", recursive=True))
print("samples:", len(list(webdataset.WebDataset(shards, shardshuffle=False))))
"""
TORCH = """
import tf_input, torch.utils.data

train = tf_input.open("out")["train"]
keys_of = lambda examples: [example["key"] for example in examples]
loader = torch.utils.data.DataLoader(train, batch_size=8, shuffle=True, collate_fn=keys_of)
print("keys:", len({key for keys in loader for key in keys}))
"""


EXAMPLES = """
import sys, tf_input

train = tf_input.open("out")["train"]
print(len([example["image"].shape for example in train]), "examples")
assert "tensorflow" not in sys.modules
"""


BATCHES = """
import sys, tf_input

for batch in tf_input.open("out").loader("train", batch_size=8, image_size=24, augment=True):
    assert batch["image"].shape[1:] == (24, 24, 3)
print(sum(len(batch["key"]) for batch in tf_input.open("out").loader("train", batch_size=8, image_size=24)), "images")
assert "tensorflow" not in sys.modules
"""
PROGRAMS = {"batches.py": BATCHES, "examples.py": EXAMPLES, "read.py": READ, "train.py": TRAIN, "loaders.py": LOADERS, "torch_loader.py": TORCH}


class Use(NamedTuple):
    """Commands that use the packages of one extra of pyproject.toml.

    Attributes:
        commands: Shell commands, run in a folder with the dataset `out`, images in `images` and the files of PROGRAMS.
        printed: Text in the output of the last command.
        store: Scheme of an object store. `$STORE` is a folder there with a copy of `out`, `$URL` is the address of the
            server, and `$FLAGS` are the options of Beam for the server.
    """

    commands: tuple[str, ...]
    printed: str
    store: str = ""


SHAPE = "(8, 24, 24, 3)"
PREPARE = "recordmill prepare --input images --splits train=1 --output"
STORED = (f"{PREPARE} $STORE/new $FLAGS", "recordmill verify $STORE/new $FLAGS")
KEYS = r"[work]\naws_access_key_id = made\naws_secret_access_key = made\n"
PROFILE = "AWS_SHARED_CREDENTIALS_FILE=keys AWS_PROFILE=work AWS_ENDPOINT_URL=$URL AWS_REGION=us-east-1"
COMPLETE = (
    "_ARGCOMPLETE=1 _ARGCOMPLETE_STDOUT_FILENAME=completed "
    "COMP_LINE='recordmill prepare --progress j' COMP_POINT=31"
)
PHOTOS = (
    "import os; from PIL import Image; import pillow_heif; pillow_heif.register_heif_opener(); "
    'os.makedirs("photos/a"); [Image.new("RGB", (40, 30)).save(f"photos/a/1.{end}") for end in ("heic", "avif")]'
)
BACKEND = f"python {CHECKOUT}/tests/keras_backend_training.py out $(mktemp -d -p .) images.npy"
SITE = f"cd {CHECKOUT} && NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --site-dir $OLDPWD/site"
USES = {
    "": Use(("python -W error -c 'import google_crc32c'", "recordmill inspect out", "python examples.py"), "93 examples"),
    "tensorflow": Use(("python train.py",), "classes predicted: 17"),
    "beam": Use((f"{PREPARE} new", "recordmill verify new", "recordmill report new", "python examples.py"), "93 examples"),
    "export": Use(
        (
            "recordmill export out parquet --to parquet",
            "recordmill export out webdataset --to webdataset",
            "recordmill export out array_record --to array_record",
            "ls array_record",
        ),
        "train",
    ),
    "gcp": Use(("python -c 'import google.cloud.dataflow_v1beta3, google.auth'", *STORED), "110 examples", "gs"),
    "aws": Use(STORED, "110 examples", "s3"),
    "azure": Use(STORED, "110 examples", "az"),
    "remote,tensorflow": Use(
        (f"printf '{KEYS}' > keys", f"{PROFILE} python read.py $STORE/out", "python read.py local://$PWD/out"),
        SHAPE,
        "s3",
    ),
    "loader": Use(("python batches.py",), "93 images"),
    "transform": Use(("recordmill analyze out --image_size 24", "python read.py out transform"), SHAPE),
    "heif": Use((f"python -c '{PHOTOS}'", "recordmill prepare --input photos --splits train=1 --output new", "cat new/statistics.json"), '"heic": 1'),
    "completion": Use((f"{COMPLETE} recordmill", "cat completed"), "json"),
    "demo": Use((f"python {CHECKOUT}/deploy/demo/demo.py --steps 7",), "7 steps"),
    "benchmark": Use(("recordmill export out exported --to webdataset", "python loaders.py"), "samples: 93"),
    "docs": Use((SITE, "ls site"), "index.html"),
    "backends,beam": Use(
        (f"KERAS_BACKEND=jax {BACKEND}", f"KERAS_BACKEND=torch {BACKEND}", "python torch_loader.py"), "keys: 93"
    ),
}


def test_every_extra_has_a_use() -> None:
    assert {"", *EXTRAS} == {name for key in USES for name in key.split(",")} | NOT_TESTED.keys()


@pytest.mark.slow(seconds=120)
@pytest.mark.skipif("RECORDMILL_TEST_LOWEST" not in os.environ, reason="`make test-lowest` downloads packages")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extras", USES)
def test_lowest_versions_support(
    extras: str, tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dataset, use = mixed_images(tmp_path_factory), USES[extras]
    shutil.copytree(dataset, tmp_path / "out")
    (tmp_path / "images").symlink_to(dataset.parent / "source")
    np.save(tmp_path / "images.npy", np.stack([picture(seed, (12, 18)) for seed in range(8)]))
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    environment = tmp_path / "lowest"
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    try:
        install(extras, environment)
        with store_variables(use.store, tmp_path / "out") as variables:
            for command in use.commands:
                printed = run("bash", "-c", command, folder=tmp_path, PATH=path, **variables)
    finally:
        shutil.rmtree(environment, ignore_errors=True)  # to free gigabytes of disk space
    assert use.printed in printed


def install(extras: str, environment: pathlib.Path) -> None:
    """Creates a virtual environment with the lowest package versions that the given extras declare."""
    uv, python = pathlib.Path(sys.executable).with_name("uv"), environment / "bin" / "python"
    run(uv, "venv", "--quiet", "--python", sys.executable, environment, folder=environment.parent)
    requirement = f"recordmill[{extras}] @ {CHECKOUT.as_uri()}".replace("[]", "")
    command = (uv, "pip", "install", "--quiet", "--resolution=lowest-direct", "--python", python, requirement)
    run(*command, folder=environment.parent)


@contextlib.contextmanager
def store_variables(scheme: str, dataset: pathlib.Path) -> Iterator[dict[str, str]]:
    """Copies a dataset to an object store and yields the environment variables of the store. See `Use.store`."""
    if not scheme:
        yield {}
        return
    with connected_to(shared_server(scheme)) as server:
        files = {f"out/{path.relative_to(dataset)}": path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
        yield {"STORE": upload_files(server, files), "URL": server.url, "FLAGS": " ".join(server.flags)}


def run(*command: str | os.PathLike, folder: pathlib.Path, **variables: str) -> str:
    """Runs a command, asserts that it succeeds, and returns its standard output."""
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return done.stdout
