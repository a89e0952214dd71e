"""Builds each container image of deploy/ with replacements for the base images, and runs the programs in it."""

import contextlib
import json
import socket
import time
import urllib.request

import pytest
import yaml
from test_container_images import images

import dockerfiles
import standin_images
from beam_pipelines.runners.job_servers import reserve_port
from dockerfiles import DOCKERFILES, ROOT
from engines import FLINK
from made_images import write_class_folders

pytestmark = pytest.mark.skipif(bool(standin_images.missing()), reason=standin_images.missing() or "all tools are installed")


def build(name: str) -> str:
    """Builds a container image from cached layers, if possible, and returns the tag of the image."""
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
def test_dataflow_image_runs_the_template():
    tag = build("dataflow")
    printed = standin_images.run(tag, "sh", "-c", 'echo "$RECORDMILL_IMAGE" && python /template/main.py --help && pip list')
    assert printed.startswith("made.example/recordmill:1\n") and "tensorflow " not in printed and "recordmill " in printed


@pytest.mark.slow(seconds=60)
def test_flink_image_has_beam_without_a_second_flink():
    tag = build("flink")
    assert user_of(tag) == "9999:9999"
    (jar,) = [name for name in standin_images.run(tag, "ls", "/opt/flink/lib").split() if "job-server" in name]
    listed = standin_images.run(tag, "python", "-m", "zipfile", "--list", f"/opt/flink/lib/{jar}")
    assert "org/apache/beam/runners/flink/FlinkPipelineRunner.class" in listed and "org/apache/flink/" not in listed


@pytest.mark.slow(seconds=60)
def test_flink_worker_image_prepares_a_dataset_as_its_user():
    tag = build("flink-workers")
    assert user_of(tag) == "9999:9999"
    made = "from PIL import Image; import os\nfor i in range(8):\n os.makedirs(f'in/{i % 2}', exist_ok=True)\n"
    made += " Image.new('RGB', (64, 48), (i * 30, 9, 200 - i * 20)).save(f'in/{i % 2}/{i}.png')"
    command = f'cd && id -u && python -c "{made}" && recordmill prepare --input in --output out --check decode && ls out && java -version'
    printed = standin_images.run(tag, "sh", "-c", command)
    assert printed.startswith("9999\n") and "manifest.json" in printed


# Like the scripts of Flink, this script puts Flink's jar last on the class path.
START = """\
libraries=$(ls /opt/flink/lib/*.jar | grep -v flink-dist | sort | tr '\\n' ':')$(ls /opt/flink/lib/flink-dist*.jar)
options="--add-exports=java.base/sun.net.util=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED"
for package in lang net io nio lang.reflect text time util util.concurrent; do
  options="$options --add-opens=java.base/java.$package=ALL-UNNAMED"
done
java=/opt/java/openjdk/bin/java
export FLINK_PLUGINS_DIR=/opt/flink/plugins
if [ "$1" = StandaloneSessionClusterEntrypoint ]; then
  exec $java $options -Xmx600m -cp "$libraries" org.apache.flink.runtime.entrypoint.$1 --configDir /data/conf
fi
parameters=$($java -cp "/opt/flink/bin/bash-java-utils.jar:$libraries" org.apache.flink.runtime.util.bash.BashJavaUtils \\
  GET_TM_RESOURCE_PARAMS --configDir /data/conf | sed -n 's/.*BASH_JAVA_UTILS_EXEC_RESULT://p')
exec $java $(echo "$parameters" | sed -n 1p) $options -cp "$libraries" org.apache.flink.runtime.taskexecutor.$1 \\
  --configDir /data/conf $(echo "$parameters" | sed -n 2p)
"""


@pytest.mark.slow(seconds=90)
def test_flink_images_run_the_job_of_the_manifest(tmp_path):
    """The JobManager, a TaskManager, a worker pool and the submit command each run in their own container."""
    with socket.socket() as probe:
        if probe.connect_ex(("localhost", 50000)) == 0:
            pytest.skip("port 50000, which the worker pool of Beam needs, is already in use")
    flink, workers = build("flink"), build("flink-workers")
    rest, rpc = reserve_port(), reserve_port()
    settings = {item["kind"]: item for item in yaml.safe_load_all((FLINK / "kubernetes/cluster.yaml").read_text())}["FlinkDeployment"]["spec"]
    settings = {name: value for name, value in settings["flinkConfiguration"].items() if not name.startswith(("high-availability", "task"))}
    settings |= {"rest.port": rest, "rest.address": "localhost", "jobmanager.rpc.address": "localhost", "jobmanager.rpc.port": rpc}
    settings |= {"jobmanager.memory.process.size": "1200m", "taskmanager.memory.process.size": "1400m", "taskmanager.host": "localhost"}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("".join(f"{name}: {json.dumps(str(value))}\n" for name, value in settings.items()))
    (tmp_path / "start.sh").write_text(START)
    write_class_folders(tmp_path / "flowers", {"ant": 20, "bee": 20})
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o777)

    (job,) = yaml.safe_load_all((FLINK / "kubernetes/job.yaml").read_text())
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    changed = {"--flink_master": f"localhost:{rest}", "--parallelism": "1", "--output": "/data/out"}
    command = [f"{name}={changed[name]}" if (name := word.partition("=")[0]) in changed else word for word in command]
    with contextlib.ExitStack() as stack:
        for name in ("StandaloneSessionClusterEntrypoint", "TaskManagerRunner"):
            log = tmp_path / f"{name}.log"
            stack.enter_context(standin_images.running(flink, "sh", "/data/start.sh", name, data=tmp_path, log=log))
        pool = ("/opt/apache/beam/boot", "--worker_pool")
        stack.enter_context(standin_images.running(workers, *pool, data=tmp_path, log=tmp_path / "pool.log"))
        wait_for_task_manager(rest)
        standin_images.run(workers, *command, data=tmp_path)
    assert (tmp_path / "out/manifest.json").exists()


def wait_for_task_manager(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://localhost:{port}/overview", timeout=5) as answer:
            if json.load(answer)["taskmanagers"]:
                return
        time.sleep(0.5)
    raise TimeoutError("no TaskManager started within 120 s")


@pytest.mark.slow(seconds=60)
def test_trainer_image_has_its_program():
    tag = build("trainer")
    assert user_of(tag) == "1000:1000"
    assert standin_images.run(tag, "python", "/app/train.py", "--help").startswith("usage: train.py")
    assert standin_images.run(tag, "python", "-c", "import tf_input, obstore; print(tf_input.__name__)") == "tf_input\n"


def test_serving_image_is_not_built():
    pytest.skip("TensorFlow Serving is only available as an image; test_container_images.py checks its Dockerfile")
