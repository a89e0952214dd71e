"""Tests the lifecycle rule of the bucket, and the arguments that the scripts in deploy/dataflow pass to gcloud."""

import json
import re
import subprocess

import pytest

from dockerfiles import ROOT

DATAFLOW = ROOT / "deploy" / "dataflow"
ENVIRONMENT = {
    "PROJECT": "made",
    "REGION": "europe-west1",
    "BUCKET": "scratch",
    "SERVICE_ACCOUNT": "jobs@made",
    "MAX_WORKERS": "9",
    "BUILD_ACCOUNT": "builds@made",
    "TAG": "1",
}
OUTPUT = "gs://data/Flowers_2"


@pytest.fixture
def run_script(tmp_path):
    """Returns a function that runs a script with a fake `gcloud`, which logs its arguments."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gcloud").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/asked\n'
        f'case "$*" in *"jobs list"*) cat {tmp_path}/active;; *"jobs describe"*) head -1 {tmp_path}/states; sed -i 1d {tmp_path}/states;;'
        ' *"flex-template run"*) echo job-1;; esac\n'
    )
    (tools / "sleep").write_text("#!/bin/sh\n")
    (tools / "python3").write_text("#!/bin/sh\nprintf 'BEAM_IMAGE=a@sha256:1\\nLAUNCHER_IMAGE=b@sha256:2\\nPYTHON_IMAGE=c@sha256:3\\n'\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)

    def run(script: str, *arguments: str, active: str = "", states: str = "", without: str = "", **changed: str):
        (tmp_path / "active").write_text(active)
        (tmp_path / "states").write_text(states)
        (tmp_path / "asked").write_text("")
        environment = {"PATH": f"{tools}:/usr/bin:/bin", **ENVIRONMENT, **changed}
        environment.pop(without, None)
        done = subprocess.run([DATAFLOW / script, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        return done, (tmp_path / "asked").read_text().splitlines()

    return run


def launch(run_script, *arguments: str, **changed: str):
    return run_script("run.sh", *arguments, "gs://raw/flowers", OUTPUT, "resume=true", **changed)


@pytest.mark.parametrize("name", ["PROJECT", "REGION", "BUCKET", "SERVICE_ACCOUNT", "MAX_WORKERS"])
def test_script_fails_if_a_required_variable_is_not_set(run_script, name):
    for script, arguments in (("run.sh", ("gs://raw/flowers", OUTPUT)), ("build.sh", ())):
        done, asked = run_script(script, *arguments, without=name)
        assert (done.returncode, asked) == (2, []) and name in done.stderr and done.stderr.count("\n") == 1


def test_workers_have_private_addresses_by_default(run_script):
    _, (_, private) = launch(run_script)
    _, (_, public) = launch(run_script, PUBLIC_ADDRESSES="yes")
    assert "--disable-public-ips" in private and "--disable-public-ips" not in public
    assert "--service-account-email=jobs@made" in private and "--max-workers=9" in private
    _, (built,) = run_script("build.sh", "--template-only")
    assert "--disable-public-ips" in built and "--max-workers=9" in built and "--service-account-email=jobs@made" in built


def test_job_name_is_derived_from_the_output(run_script):
    done, (listed, launched) = launch(run_script)
    name = re.search(r"flex-template run (\S+)", launched)[1]
    assert re.fullmatch(r"recordmill-flowers-2-[0-9a-f]{8}", name)
    assert f"--status=active --filter=name={name}" in listed
    assert done.stdout.startswith(f"launched: {name}, https://console.cloud.google.com/dataflow/jobs/europe-west1/job-1?project=made")
    _, (_, other) = run_script("run.sh", "gs://raw/flowers", "gs://else/Flowers_2")
    _, (_, same) = run_script("run.sh", "gs://raw/flowers", f"{OUTPUT}/")
    assert name in same and name not in other


def test_second_start_reports_the_running_job(run_script):
    done, asked = launch(run_script, active="job-7\n")
    assert done.returncode == 0 and done.stdout.startswith("already running: recordmill-flowers-2-") and "job-7" in done.stdout
    assert not any("flex-template run" in item for item in asked)


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("DONE", 0, f"done: {OUTPUT}"),
        ("FAILED", 1, " FAILED"),
        ("CANCELLED", 1, " CANCELLED"),
    ],
)
def test_wait_returns_the_result_of_the_job(run_script, end, code, said):
    done, asked = launch(run_script, "--wait", states=f"JOB_STATE_QUEUED\nJOB_STATE_RUNNING\nJOB_STATE_{end}\n")
    assert done.returncode == code and said in (done.stdout + done.stderr).splitlines()[-1]
    assert sum("jobs describe job-1" in item for item in asked) == 3


def test_wait_waits_for_a_job_that_is_already_running(run_script):
    done, asked = launch(run_script, "--wait", active="job-7\n", states="JOB_STATE_DONE\n")
    assert done.returncode == 0 and "jobs describe job-7" in asked[-1]


def test_flexrs_option_is_passed(run_script):
    _, (_, launched) = launch(run_script, FLEXRS="yes")
    assert "--flexrs-goal=COST_OPTIMIZED" in launched


def test_build_passes_account_base_images_and_bucket(run_script):
    _, (submitted, _) = run_script("build.sh")
    assert "--service-account=projects/made/serviceAccounts/builds@made" in submitted
    assert "_BEAM_IMAGE=a@sha256:1,_LAUNCHER_IMAGE=b@sha256:2,_PYTHON_IMAGE=c@sha256:3" in submitted
    assert "--gcs-source-staging-dir=gs://scratch/tmp/source" in submitted
    substituted = set(re.findall(r"\$\{_(\w+)\}", (DATAFLOW / "cloudbuild.yaml").read_text()))
    assert substituted == set(re.findall(r"_(\w+)=", submitted.partition("--substitutions=")[2].split()[0]))
    asked = re.findall(r"^ARG (\w+)$", (DATAFLOW / "Dockerfile").read_text(), re.MULTILINE)
    assert set(asked) == substituted


def test_uncommitted_changes_are_not_pushed(run_script):
    for arguments in ((), ("--template-only",)):
        done, asked = run_script("build.sh", *arguments, TAG="abc-dirty")
        assert (done.returncode, asked) == (2, []) and "the commit abc" in done.stderr


def test_lifecycle_rule_deletes_scratch_files_but_not_the_template(run_script):
    deleting = [load for load in json.loads((DATAFLOW / "lifecycle.json").read_text())["rule"] if load["action"]["type"] == "Delete"]
    prefixes = [prefix for rule in deleting for prefix in rule["condition"]["matchesPrefix"]]
    assert all("matchesPrefix" in rule["condition"] for rule in deleting)
    _, (_, launched) = launch(run_script)
    used = re.findall(r"--(?:staging|temp)-location=gs://scratch/(\S+)", launched)
    assert used and all(f"{item}/".startswith(tuple(prefixes)) for item in used)
    template = re.search(r"--template-file-gcs-location=gs://scratch/(\S+)", launched)[1]
    assert not template.startswith(tuple(prefixes))
