"""The manifests for Kubernetes and the image agree with each other, with the command and with the cluster of this machine."""

import re
import subprocess
import sys
import tomllib

import yaml

import engines
from beam_pipelines.__main__ import make_parser
from beam_pipelines.runners.jobs import parse_pipeline_options
from engines import FLINK, ROOT

flink_cluster = engines.flink_cluster()


def manifests() -> dict[str, dict]:
    """Kind -> manifest."""
    paths = sorted(FLINK.glob("kubernetes/*.yaml"))
    return {document["kind"]: document for path in paths for document in yaml.safe_load_all(path.read_text())}


def test_the_manifests_submit_to_the_cluster_that_they_bring_up():
    found = manifests()
    assert set(found) == {"PersistentVolumeClaim", "FlinkDeployment", "Job"}
    spec = found["FlinkDeployment"]["spec"]
    (submit,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    command, name, *flags = submit["command"]
    assert command == "recordmill"
    arguments, beam_flags = make_parser().parse_known_args([name, *flags])
    options = parse_pipeline_options(beam_flags).get_all_options()
    assert arguments.shared_filesystem

    (workers,) = spec["taskManager"]["podTemplate"]["spec"]["containers"]
    port = workers["ports"][0]["containerPort"]
    assert (options["environment_type"], options["environment_config"]) == ("EXTERNAL", f"localhost:{port}")
    assert workers["args"] == ["--worker_pool"] and port == 50000
    assert workers["image"] == submit["image"]
    assert options["flink_master"] == f"{found['FlinkDeployment']['metadata']['name']}-rest:8081"
    slots = int(spec["flinkConfiguration"]["taskmanager.numberOfTaskSlots"]) * spec["taskManager"]["replicas"]
    assert int(options["parallelism"]) == slots
    assert "restart-strategy.type" in spec["flinkConfiguration"]


def test_the_flink_version_is_the_same_everywhere():
    minor = flink_cluster.FLINK.rpartition(".")[0]
    spec = manifests()["FlinkDeployment"]["spec"]
    assert spec["image"].startswith(f"flink:{flink_cluster.FLINK}-")
    assert spec["flinkVersion"] == f"v{minor.replace('.', '_')}"
    flags = manifests()["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert f"--flink_version={minor}" in flags
    assert f"beam-runners-flink-{minor}<" in (FLINK / "job_server" / "pom.xml").read_text()


def test_what_uses_the_data_mounts_the_claim_that_there_is():
    found = manifests()
    claim = found["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    common = found["FlinkDeployment"]["spec"]["podTemplate"]["spec"]
    pods = [found["Job"]["spec"]["template"]["spec"], common]
    for pod in pods:
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    workers = found["FlinkDeployment"]["spec"]["taskManager"]["podTemplate"]["spec"]["containers"]
    mounts = [mount for container in [*pods[0]["containers"], *workers] for mount in container["volumeMounts"]]
    assert mounts == [{"name": volume["name"], "mountPath": "/data"}] * 2


def requirements_of(extras):
    command = [sys.executable, str(FLINK / "requirements.py"), *extras]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())


def test_the_image_has_the_pinned_beam_the_extras_that_there_are_and_the_jar_that_is_submitted_with():
    text = (FLINK / "Dockerfile").read_text()
    (beam,) = re.findall(r"^ARG BEAM=(.*)$", text, re.MULTILINE)
    assert f"apache-beam=={beam}" in (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "python requirements.py ${EXTRAS} >" in text
    (names,) = re.findall(r'^ARG EXTRAS="(.*)"$', text, re.MULTILINE)
    assert requirements_of(names.split()) == set(extras["beam"]) | {"apache-beam[gcp]", "apache-beam[aws]"}
    (wider,) = re.findall(r'--build-arg EXTRAS="(.*)" --tag', (FLINK / "README.md").read_text())
    added = requirements_of(wider.split()) - requirements_of(names.split())
    assert added == {requirement for requirement in extras["transform"] if not requirement.startswith("recordmill")}
    for source in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE):
        for path in source.split():
            assert (ROOT / path).exists(), path
    (jar,) = re.findall(r"^COPY --from=job_server \S+ (\S+)$", text, re.MULTILINE)
    flags = manifests()["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert f"--flink_job_server_jar={jar}" in flags
