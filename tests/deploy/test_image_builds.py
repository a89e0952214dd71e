"""Every image of deploy/ is built from its Dockerfile, every step of it, on stand-ins for its bases; and what is in it is run."""

import json

import pytest
from test_images import images

import dockerfiles
import standin_images
from dockerfiles import DOCKERFILES, ROOT

pytestmark = pytest.mark.skipif(bool(standin_images.missing()), reason=standin_images.missing() or "it is all there")


def build(name: str) -> str:
    """The tag of an image that is built now; what has not changed since is not built again."""
    folder, target, arguments = images.IMAGES[name]
    path, tag = DOCKERFILES[folder], f"recordmill-{name}"
    asked = [argument for argument in dockerfiles.arguments(path) if argument.endswith("_IMAGE")]
    options = [f"--build-arg={argument}={standin_images.base(argument)}" for argument in asked]
    options += [f"--build-arg={argument}" for argument in arguments]
    options += ["--build-arg=IMAGE=made.example/recordmill:1"] if name == "dataflow" else []
    options += [f"--target={target}"] if target else []
    standin_images.build(path, ROOT, tag, *options, f"--ignorefile={path}.dockerignore")
    return tag


def user_of(tag: str) -> str:
    return json.loads(standin_images.buildah("inspect", "--type=image", f"localhost/{tag}"))["OCIv1"]["config"].get("User", "")


@pytest.mark.slow(seconds=60)
def test_dataflow():
    tag = build("dataflow")
    said = standin_images.run(tag, "sh", "-c", 'echo "$RECORDMILL_IMAGE" && python /template/main.py --help && pip list')
    assert said.startswith("made.example/recordmill:1\n") and "tensorflow " not in said and "recordmill " in said


@pytest.mark.slow(seconds=60)
def test_flink():
    """Beam is there once, and Flink in the version of the image alone."""
    tag = build("flink")
    assert user_of(tag) == "9999:9999"
    (jar,) = [name for name in standin_images.run(tag, "ls", "/opt/flink/lib").split() if "job-server" in name]
    listed = standin_images.run(tag, "python", "-m", "zipfile", "--list", f"/opt/flink/lib/{jar}")
    assert "org/apache/beam/runners/flink/FlinkPipelineRunner.class" in listed and "org/apache/flink/" not in listed


@pytest.mark.slow(seconds=60)
def test_flink_workers_prepare_a_data_set_as_their_user():
    tag = build("flink-workers")
    assert user_of(tag) == "9999:9999"
    made = "from PIL import Image; import os\nfor i in range(8):\n os.makedirs(f'in/{i % 2}', exist_ok=True)\n"
    made += " Image.new('RGB', (64, 48), (i * 30, 9, 200 - i * 20)).save(f'in/{i % 2}/{i}.png')"
    command = f'cd && id -u && python -c "{made}" && recordmill prepare --input in --output out --check decode && ls out && java -version'
    said = standin_images.run(tag, "sh", "-c", command)
    assert said.startswith("9999\n") and "manifest.json" in said


@pytest.mark.slow(seconds=60)
def test_tf_data_service():
    tag = build("tf-data-service")
    assert user_of(tag) == "1000:1000"
    assert standin_images.run(tag, "python", "/app/serve.py", "--help").startswith("usage: serve.py")


@pytest.mark.slow(seconds=60)
def test_trainer():
    tag = build("trainer")
    assert user_of(tag) == "1000:1000"
    assert standin_images.run(tag, "python", "/app/train.py", "--help").startswith("usage: train.py")
    assert standin_images.run(tag, "python", "-c", "import tf_input, obstore; print(tf_input.__name__)") == "tf_input\n"


def test_serving_has_no_stand_in():
    pytest.skip("TensorFlow Serving comes in no package but its own image: of its Dockerfile test_images.py reads what it says")
