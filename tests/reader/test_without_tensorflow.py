"""Tests reading datasets without TensorFlow, Keras and Beam."""

import json
import pathlib
import subprocess
import sys

import pytest

from prepared import prepare_images

PROGRAM = """
import importlib.abc, json, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *unused):
        if name.partition(".")[0] in ("tensorflow", "keras", "apache_beam"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import tf_input

flowers = tf_input.open(sys.argv[1])
train = flowers["train"]
keys = flowers.keys("train").tolist()
batch = flowers.which("train", batch_size=4, seed=0, epoch=1, step=2)
loaded = sum(len(batch["image"]) for batch in flowers.loader("train", batch_size=4, image_size=8, augment=True))
try:
    flowers.batches("train", batch_size=4, image_size=8)
except ImportError as error:
    message = str(error)
print(json.dumps({
    "text": str(flowers), "html": flowers._repr_html_(), "keys": keys, "same": train[keys[3]]["key"] == train[3]["key"],
    "shape": train[5]["image"].shape, "labels": [example["label"] for example in train], "weights": flowers.class_weight(),
    "batch": batch["key"].tolist(), "message": message, "loaded": loaded,
}))
"""


@pytest.mark.slow
def test_datasets_and_examples_can_be_read(tmp_path: pathlib.Path):
    directory = prepare_images(tmp_path, num_images={"ant": 12, "bee": 12})
    done = subprocess.run([sys.executable, "-c", PROGRAM, directory], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "ant, bee" in result["text"] and "<table" in result["html"]
    assert len(set(result["keys"])) == len(result["labels"]) == result["loaded"] and result["same"] and len(result["shape"]) == 3
    assert sum(result["labels"]) == sum(key.startswith("bee/") for key in result["keys"])
    assert set(result["weights"]) == {"0", "1"} and len(set(result["batch"]) & set(result["keys"])) == 4
    assert "recordmill[tensorflow]" in result["message"]
