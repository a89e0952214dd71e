"""Tests that the Kubernetes manifests for Flink agree with the container images and with `deploy/flink/cluster.py`."""

import re

import yaml

import dockerfiles
import engines
from beam_pipelines.options.arguments import make_parser
from beam_pipelines.runners import engine
from beam_pipelines.runners.jobs import parse_pipeline_options
from engines import FLINK

flink_cluster = engines.flink_cluster()


def documents() -> list[dict]:
    return [item for path in sorted(FLINK.glob("kubernetes/*.yaml")) for item in yaml.safe_load_all(path.read_text())]


def document_of_kind(kind: str) -> dict:
    (actual,) = (document for document in documents() if document["kind"] == kind)
    return actual


def cluster() -> dict:
    return document_of_kind("FlinkDeployment")["spec"]


def pod(part: str) -> dict:
    return cluster()[part]["podTemplate"]["spec"]


def submit_container() -> dict:
    """Returns the container that submits the job."""
    (actual,) = document_of_kind("Job")["spec"]["template"]["spec"]["containers"]
    return actual


def test_job_is_submitted_to_the_cluster_of_the_manifests():
    command, name, *flags = submit_container()["command"]
    assert command == "recordmill"
    arguments, beam_flags = make_parser().parse_known_args([name, *flags])
    options = parse_pipeline_options(beam_flags).get_all_options()
    assert arguments.shared_filesystem and arguments.resume

    main, workers = pod("taskManager")["containers"]
    port = workers["ports"][0]["containerPort"]
    assert main["name"] == "flink-main-container"
    assert (options["environment_type"], options["environment_config"]) == ("EXTERNAL", f"localhost:{port}")
    assert workers["args"] == ["--worker_pool"] and port == 50000
    assert workers["image"] == submit_container()["image"] != cluster()["image"]
    assert options["flink_master"] == f"{document_of_kind('FlinkDeployment')['metadata']['name']}-rest:8081"
    slots = int(cluster()["flinkConfiguration"]["taskmanager.numberOfTaskSlots"]) * cluster()["taskManager"]["replicas"]
    assert int(options["parallelism"]) == slots
    assert "disable_logging_submission_environment" in options["experiments"], "staged files are only in the submitting pod"


def test_job_survives_the_loss_of_a_task_or_job_manager():
    settings = cluster()["flinkConfiguration"]
    assert settings["restart-strategy.type"] == "fixed-delay"
    assert settings["high-availability.type"] == "kubernetes" and cluster()["jobManager"]["replicas"] == 2
    folder = settings["high-availability.storageDir"].removeprefix("file://")
    for part in ("jobManager", "taskManager"):
        (mount,) = (item for item in pod(part)["containers"][0]["volumeMounts"] if folder.startswith(f"{item['mountPath']}/"))
        assert mount["name"] in {volume["name"] for volume in pod(part)["volumes"]}


def test_pod_templates_are_not_merged():
    """The Flink operator merges containers by index, so a worker pool container would replace Flink's own container."""
    assert "podTemplate" not in cluster()


def test_beam_is_on_the_class_path_as_in_the_local_cluster():
    settings = cluster()["flinkConfiguration"]
    assert settings["classloader.resolve-order"] == "parent-first"
    copied = [stage.value for stage in dockerfiles.stages(FLINK / "Dockerfile")["flink"] if stage.name == "COPY"]
    version = flink_cluster.JOB_SERVER if hasattr(flink_cluster, "JOB_SERVER") else flink_cluster.JAR.stem.rpartition("-")[2]
    jar = f"/build/target/flink-job-server-{version}-class-path.jar"
    assert copied == [f"--from=job_server {jar} /opt/flink/lib/"]
    pom = (FLINK / "job_server" / "pom.xml").read_text()
    assert "<exclude>org.apache.flink:*</exclude>" in pom, "the jar would contain another version of Flink"
    assert any(flag.startswith("--environment_cache_millis=") for flag in submit_container()["command"])


def test_grace_period_of_the_job_is_longer_than_cancelling():
    assert document_of_kind("Job")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > engine._STOP_SECONDS


def test_flink_version_is_the_same_everywhere():
    minor = flink_cluster.FLINK.rpartition(".")[0]
    bases = (FLINK.parent / "base_images.json").read_text()
    assert f'"flink:{flink_cluster.FLINK}-' in bases
    assert cluster()["flinkVersion"] == f"v{minor.replace('.', '_')}"
    assert f"--flink_version={minor}" in submit_container()["command"]
    assert f"beam-runners-flink-{minor}<" in (FLINK / "job_server" / "pom.xml").read_text()


def test_worker_image_has_the_job_server_jar():
    text = (FLINK / "Dockerfile").read_text()
    jars = re.findall(r"^COPY --from=job_server \S+/(\S+) (\S+)$", text, re.MULTILINE)
    assert (flink_cluster.JAR.name, "/opt/flink-job-server.jar") in jars
    assert "--flink_job_server_jar=/opt/flink-job-server.jar" in submit_container()["command"]
    user = pod("taskManager")["securityContext"]["runAsUser"]
    stages = dockerfiles.stages(FLINK / "Dockerfile")
    for stage in ("flink", "workers"):
        assert [item.value for item in stages[stage] if item.name == "USER"] == [f"{user}:{user}"]
