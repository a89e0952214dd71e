"""The manifests for Flink on Kubernetes and the images agree with each other, with the command and with the cluster of this machine."""

import re

import yaml

import dockerfiles
import engines
from beam_pipelines.__main__ import make_parser
from beam_pipelines.runners import engine
from beam_pipelines.runners.jobs import parse_pipeline_options
from engines import FLINK

flink_cluster = engines.flink_cluster()


def documents() -> list[dict]:
    return [item for path in sorted(FLINK.glob("kubernetes/*.yaml")) for item in yaml.safe_load_all(path.read_text())]


def only(kind: str) -> dict:
    (actual,) = (document for document in documents() if document["kind"] == kind)
    return actual


def cluster() -> dict:
    return only("FlinkDeployment")["spec"]


def pod(part: str) -> dict:
    return cluster()[part]["podTemplate"]["spec"]


def submit() -> dict:
    """The container that submits."""
    (actual,) = only("Job")["spec"]["template"]["spec"]["containers"]
    return actual


def test_the_manifests_submit_to_the_cluster_that_they_bring_up():
    command, name, *flags = submit()["command"]
    assert command == "recordmill"
    arguments, beam_flags = make_parser().parse_known_args([name, *flags])
    options = parse_pipeline_options(beam_flags).get_all_options()
    assert arguments.shared_filesystem and arguments.resume

    main, workers = pod("taskManager")["containers"]
    port = workers["ports"][0]["containerPort"]
    assert main["name"] == "flink-main-container"
    assert (options["environment_type"], options["environment_config"]) == ("EXTERNAL", f"localhost:{port}")
    assert workers["args"] == ["--worker_pool"] and port == 50000
    assert workers["image"] == submit()["image"] != cluster()["image"]
    assert options["flink_master"] == f"{only('FlinkDeployment')['metadata']['name']}-rest:8081"
    slots = int(cluster()["flinkConfiguration"]["taskmanager.numberOfTaskSlots"]) * cluster()["taskManager"]["replicas"]
    assert int(options["parallelism"]) == slots
    assert "disable_logging_submission_environment" in options["experiments"], "staged files lie in the submitting pod alone"


def test_a_job_outlives_a_task_manager_and_a_job_manager():
    settings = cluster()["flinkConfiguration"]
    assert settings["restart-strategy.type"] == "fixed-delay"
    assert settings["high-availability.type"] == "kubernetes" and cluster()["jobManager"]["replicas"] == 2
    folder = settings["high-availability.storageDir"].removeprefix("file://")
    for part in ("jobManager", "taskManager"):
        (mount,) = (item for item in pod(part)["containers"][0]["volumeMounts"] if folder.startswith(f"{item['mountPath']}/"))
        assert mount["name"] in {volume["name"] for volume in pod(part)["volumes"]}


def test_no_pod_template_is_joined_with_another():
    """The operator joins lists of containers by place, which would make the workers Flink's container."""
    assert "podTemplate" not in cluster()


def test_beam_is_on_the_class_path_as_on_this_machine():
    settings = cluster()["flinkConfiguration"]
    assert settings["classloader.resolve-order"] == "parent-first"
    copied = [stage.value for stage in dockerfiles.stages(FLINK / "Dockerfile")["flink"] if stage.name == "COPY"]
    version = flink_cluster.JOB_SERVER if hasattr(flink_cluster, "JOB_SERVER") else flink_cluster.JAR.stem.rpartition("-")[2]
    jar = f"/build/target/flink-job-server-{version}-class-path.jar"
    assert copied == [f"--from=job_server {jar} /opt/flink/lib/"]
    pom = (FLINK / "job_server" / "pom.xml").read_text()
    assert "<exclude>org.apache.flink:*</exclude>" in pom, "before Flink's own jar it would bring another version of Flink"
    assert any(flag.startswith("--environment_cache_millis=") for flag in submit()["command"])


def test_the_grace_of_the_job_is_longer_than_cancelling_takes():
    assert only("Job")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > engine._STOP_SECONDS


def test_the_flink_version_is_the_same_everywhere():
    minor = flink_cluster.FLINK.rpartition(".")[0]
    bases = (FLINK.parent / "base_images.json").read_text()
    assert f'"flink:{flink_cluster.FLINK}-' in bases
    assert cluster()["flinkVersion"] == f"v{minor.replace('.', '_')}"
    assert f"--flink_version={minor}" in submit()["command"]
    assert f"beam-runners-flink-{minor}<" in (FLINK / "job_server" / "pom.xml").read_text()


def test_the_workers_image_has_the_jar_that_is_submitted_with():
    text = (FLINK / "Dockerfile").read_text()
    jars = re.findall(r"^COPY --from=job_server \S+/(\S+) (\S+)$", text, re.MULTILINE)
    assert (flink_cluster.JAR.name, "/opt/flink-job-server.jar") in jars
    assert "--flink_job_server_jar=/opt/flink-job-server.jar" in submit()["command"]
    user = pod("taskManager")["securityContext"]["runAsUser"]
    stages = dockerfiles.stages(FLINK / "Dockerfile")
    for stage in ("flink", "workers"):
        assert [item.value for item in stages[stage] if item.name == "USER"] == [f"{user}:{user}"]
