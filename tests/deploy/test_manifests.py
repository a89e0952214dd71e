"""Tests that the manifests in deploy/ match the Kubernetes schemas and common security requirements."""

import pathlib
import re
import socket
import subprocess
import sys
from concurrent import futures
from typing import Any, Iterator, NamedTuple

import grpc
import pytest
import yaml

from dockerfiles import ROOT

PATHS = sorted((ROOT / "deploy").glob("*/kubernetes/*.yaml"))
OLDEST = "1.31"  # the first version in which podFailurePolicy of a Job is stable
# Custom resources of the Flink operator, of which only the pods are checked.
CUSTOM = {"flink.apache.org/v1beta1"}
PROBE_KINDS = ("exec", "grpc", "httpGet", "tcpSocket")  # kinds of probes


def documents(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [item for path in sorted(folder.glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]


FOLDERS = sorted({path.parent for path in PATHS})
for_every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)


class Pods(NamedTuple):
    """Pods of one kind.
    Attributes:
        owner: Manifest that creates the pods.
        name: Name for messages.
        labels: Labels of each pod.
        spec: Specification of each pod.
    """

    owner: dict[str, Any]
    name: str
    labels: dict[str, str]
    spec: dict[str, Any]


def pods(folder: pathlib.Path) -> Iterator[Pods]:
    for document in documents(folder):
        kind, name, spec = document["kind"], document["metadata"]["name"], document.get("spec", {})
        if kind == "FlinkDeployment":
            for part in ("jobManager", "taskManager"):
                labels = {"app": name, "component": part.lower()}  # labels that the operator sets
                yield Pods(document, f"{name}/{part}", labels, {**spec[part]["podTemplate"]["spec"], "serviceAccountName": spec["serviceAccount"]})
        if kind in ("Deployment", "StatefulSet", "Job", "CronJob"):
            template = (spec["jobTemplate"]["spec"] if kind == "CronJob" else spec)["template"]
            labels = {**template["metadata"]["labels"], **({"job-name": name} if kind == "Job" else {})}
            yield Pods(document, name, labels, template["spec"])


def jobs(folder: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for document in documents(folder):
        if document["kind"] in ("Job", "CronJob"):
            yield document["metadata"]["name"], document["spec"]["jobTemplate"]["spec"] if document["kind"] == "CronJob" else document["spec"]


def names_of_kind(folder: pathlib.Path, kind: str) -> set[str]:
    return {document["metadata"]["name"] for document in documents(folder) if document["kind"] == kind}


@pytest.mark.slow
@pytest.mark.parametrize("version", [OLDEST, "latest"])
@for_every_folder
def test_manifests_match_the_kubernetes_schemas(folder, version):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate, with Kubernetes' schemas, is not installed")
    version = validate.latest_version() if version == "latest" else version
    for document in documents(folder):
        if document["apiVersion"] not in CUSTOM:
            validate.validate(document, version, strict=True)
    for document in pods(folder):
        if document.owner["apiVersion"] in CUSTOM:
            spec = {**document.spec, "containers": [{"image": "made", **container} for container in document.spec["containers"]]}
            validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "made"}, "spec": spec}, version, strict=True)


@for_every_folder
def test_pods_run_without_privileges(folder):
    """Containers need the settings that the `restricted` Pod Security Standard of Kubernetes requires."""
    for pod in pods(folder):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True and context["runAsUser"] > 0, pod.name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, pod.name
        for container in pod.spec["containers"]:
            expected = {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert container["securityContext"] == expected, pod.name


@for_every_folder
def test_each_container_has_its_own_scratch_directory(folder):
    """The root file system of a container must be read-only, and scratch volumes must have a size limit."""
    for pod in pods(folder):
        scratch = {volume["name"]: volume["emptyDir"] for volume in pod.spec.get("volumes", ()) if "emptyDir" in volume}
        assert all(volume["sizeLimit"] for volume in scratch.values()), pod.name
        mounts = [
            mount["name"]
            for container in pod.spec["containers"]
            for mount in container["volumeMounts"]
            if mount["mountPath"] == "/tmp"
        ]
        assert len(set(mounts)) == len(pod.spec["containers"]) and set(mounts) <= set(scratch), pod.name


@for_every_folder
def test_each_container_declares_its_resources(folder):
    for pod in pods(folder):
        for container in pod.spec["containers"]:
            if container["name"] == "flink-main-container":  # the operator has a field for Flink's resources
                part = pod.owner["spec"][pod.name.partition("/")[2]]
                assert {"cpu", "memory", "ephemeralStorage"} == set(part["resource"])
                continue
            resources = container["resources"]
            assert {"cpu", "memory", "ephemeral-storage"} <= set(resources["requests"]), pod.name
            assert resources["limits"]["memory"] == resources["requests"]["memory"], pod.name


@for_every_folder
def test_each_server_has_probes(folder):
    for pod in pods(folder):
        if pod.owner["kind"] in ("Job", "CronJob"):
            continue
        for container in pod.spec["containers"]:
            assert {"readinessProbe", "livenessProbe"} <= set(container), f"{pod.name}: {container['name']}"
            asked = [{how: container[probe].get(how) for how in PROBE_KINDS} for probe in ("readinessProbe", "livenessProbe")]
            assert asked[0] != asked[1], f"{pod.name}: a busy pod must not be restarted"


def grpc_probes() -> list[list[str]]:
    """Returns the commands of all liveness probes that send a request to a gRPC server."""
    containers = [container for folder in FOLDERS for pod in pods(folder) for container in pod.spec["containers"]]
    return [item["livenessProbe"]["exec"]["command"] for item in containers if "exec" in item.get("livenessProbe", {})]


@pytest.mark.slow(3)
def test_liveness_probe_calls_the_grpc_server():
    """A TCP probe would not detect a process that hangs, because it still accepts connections."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("localhost:0")
    server.start()
    commands = grpc_probes()
    assert len(commands) == 1
    with socket.create_server(("localhost", 0)) as mute:
        for python, option, code in commands:
            assert (python, option) == ("python", "-c")
            for asked, is_alive in ((port, True), (mute.getsockname()[1], False)):
                program = re.sub(r'\("localhost", \d+\), 5', f'("localhost", {asked}), 1', code)
                assert program != code
                done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, timeout=60)
                assert (done.returncode == 0) == is_alive
    server.stop(None)


@for_every_folder
def test_job_ends_and_is_deleted(folder):
    for name, spec in jobs(folder):
        assert spec["activeDeadlineSeconds"] > 0 and spec["ttlSecondsAfterFinished"] > 0, name
        assert spec["backoffLimit"] > 0, name
        (container,) = spec["template"]["spec"]["containers"]
        fail, ignore = spec["podFailurePolicy"]["rules"]
        codes = {"containerName": container["name"], "operator": "In", "values": [2]}
        assert (fail["action"], fail["onExitCodes"]) == ("FailJob", codes), "exit code 2 is not retryable"
        assert (ignore["action"], ignore["onPodConditions"]) == ("Ignore", [{"type": "DisruptionTarget", "status": "True"}])
        assert spec["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy requires it"
        words = " ".join([*container.get("command", []), *container.get("args", [])]).split()
        assert "--resume" in words, "a second attempt resumes"
        for timeout in (word.partition("=")[2] for word in words if word.startswith("--job_timeout=")):
            assert int(timeout) < spec["activeDeadlineSeconds"], "the command must report the timeout itself"


@for_every_folder
def test_referenced_resources_are_defined(folder):
    claims, accounts = names_of_kind(folder, "PersistentVolumeClaim"), names_of_kind(folder, "ServiceAccount")
    for pod in pods(folder):
        assert pod.spec["serviceAccountName"] in accounts, pod.name
        own = {claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", ())}
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", ())}
        for volume in volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                assert claim["claimName"] in claims, pod.name
        for container in pod.spec["containers"]:
            for mount in container.get("volumeMounts", ()):
                assert mount["name"] in {*volumes, *own}, pod.name
    roles = {(document["roleRef"]["kind"], document["roleRef"]["name"]) for document in documents(folder) if document["kind"] == "RoleBinding"}
    assert roles == {("Role", name) for name in names_of_kind(folder, "Role")}


def test_a_claim_has_the_same_definition_in_all_folders():
    actual: dict[str, Any] = {}
    for folder in FOLDERS:
        for document in documents(folder):
            if document["kind"] == "PersistentVolumeClaim":
                assert actual.setdefault(document["metadata"]["name"], document["spec"]) == document["spec"]


def selects(policy: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = (policy["spec"].get("podSelector") or policy["spec"].get("selector"))["matchLabels"]
    return wanted.items() <= labels.items()


@for_every_folder
def test_network_policies_restrict_all_pods(folder):
    """Flink's REST interface and the worker pool let clients run arbitrary code."""
    policies = [document for document in documents(folder) if document["kind"] == "NetworkPolicy"]
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        for rule in policy["spec"].get("ingress", ()):
            assert rule["from"] and all(item.get("podSelector", {}).get("matchLabels") for item in rule["from"])
    for entry in pods(folder):
        assert any(selects(policy, entry.labels) for policy in policies), entry.name
    for policy in policies:
        assert any(selects(policy, pod.labels) for pod in pods(folder)), policy["metadata"]["name"]


@for_every_folder
def test_drained_node_does_not_stop_all_servers(folder):
    budgets = [document for document in documents(folder) if document["kind"] == "PodDisruptionBudget"]
    for pod in pods(folder):
        part = pod.owner["spec"].get(pod.name.partition("/")[2], pod.owner["spec"])
        if pod.owner["kind"] not in ("Job", "CronJob") and part["replicas"] > 1:
            (budget,) = (result for result in budgets if selects(result, pod.labels))
            least = budget["spec"].get("minAvailable", part["replicas"] - budget["spec"].get("maxUnavailable", 0))
            assert 0 < least < part["replicas"], "a drained node stops some servers, but not all"


def test_every_image_in_a_manifest_is_built():
    from test_container_images import images

    names = {f"REGISTRY/recordmill-{name}:TAG" for name in images.IMAGES}
    for folder in FOLDERS:
        for pod in pods(folder):
            actual = {container["image"] for container in pod.spec["containers"] if "image" in container}
            actual |= {pod.owner["spec"]["image"]} if pod.owner["kind"] == "FlinkDeployment" else set()
            assert actual <= names, pod.name
