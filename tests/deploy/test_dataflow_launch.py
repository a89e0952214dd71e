"""What deploy/dataflow asks of gcloud: accounts, limits, addresses, names; and what a bucket's rule deletes."""

import json
import re
import subprocess

import pytest

from dockerfiles import ROOT

DATAFLOW = ROOT / "deploy" / "dataflow"
GIVEN = {
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
def ask(tmp_path):
    """Runs a script with a gcloud that writes down what it is asked, and answers from the folder's files."""
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
        environment = {"PATH": f"{tools}:/usr/bin:/bin", **GIVEN, **changed}
        environment.pop(without, None)
        done = subprocess.run([DATAFLOW / script, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        return done, (tmp_path / "asked").read_text().splitlines()

    return run


def launch(ask, *arguments: str, **changed: str):
    return ask("run.sh", *arguments, "gs://raw/flowers", OUTPUT, "resume=true", **changed)


@pytest.mark.parametrize("name", ["PROJECT", "REGION", "BUCKET", "SERVICE_ACCOUNT", "MAX_WORKERS"])
def test_nothing_is_started_without_an_account_and_a_limit(ask, name):
    for script, arguments in (("run.sh", ("gs://raw/flowers", OUTPUT)), ("build.sh", ())):
        done, asked = ask(script, *arguments, without=name)
        assert (done.returncode, asked) == (2, []) and name in done.stderr and done.stderr.count("\n") == 1


def test_workers_have_private_addresses_unless_it_is_said(ask):
    _, (_, private) = launch(ask)
    _, (_, public) = launch(ask, PUBLIC_ADDRESSES="yes")
    assert "--disable-public-ips" in private and "--disable-public-ips" not in public
    assert "--service-account-email=jobs@made" in private and "--max-workers=9" in private
    _, (built,) = ask("build.sh", "--template-only")
    assert "--disable-public-ips" in built and "--max-workers=9" in built and "--service-account-email=jobs@made" in built


def test_a_job_is_called_by_its_output(ask):
    done, (listed, launched) = launch(ask)
    name = re.search(r"flex-template run (\S+)", launched)[1]
    assert re.fullmatch(r"recordmill-flowers-2-[0-9a-f]{8}", name)
    assert f"--status=active --filter=name={name}" in listed
    assert done.stdout.startswith(f"launched: {name}, https://console.cloud.google.com/dataflow/jobs/europe-west1/job-1?project=made")
    _, (_, other) = ask("run.sh", "gs://raw/flowers", "gs://else/Flowers_2")
    _, (_, same) = ask("run.sh", "gs://raw/flowers", f"{OUTPUT}/")
    assert name in same and name not in other


def test_a_second_start_says_that_it_runs(ask):
    done, asked = launch(ask, active="job-7\n")
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
def test_with_wait_it_ends_with_the_job(ask, end, code, said):
    done, asked = launch(ask, "--wait", states=f"JOB_STATE_QUEUED\nJOB_STATE_RUNNING\nJOB_STATE_{end}\n")
    assert done.returncode == code and said in (done.stdout + done.stderr).splitlines()[-1]
    assert sum("jobs describe job-1" in item for item in asked) == 3


def test_with_wait_a_second_start_waits_for_the_first(ask):
    done, asked = launch(ask, "--wait", active="job-7\n", states="JOB_STATE_DONE\n")
    assert done.returncode == 0 and "jobs describe job-7" in asked[-1]


def test_flexrs_is_asked_for(ask):
    _, (_, launched) = launch(ask, FLEXRS="yes")
    assert "--flexrs-goal=COST_OPTIMIZED" in launched


def test_the_build_has_its_account_its_bases_and_its_bucket(ask):
    _, (submitted, _) = ask("build.sh")
    assert "--service-account=projects/made/serviceAccounts/builds@made" in submitted
    assert "_BEAM_IMAGE=a@sha256:1,_LAUNCHER_IMAGE=b@sha256:2,_PYTHON_IMAGE=c@sha256:3" in submitted
    assert "--gcs-source-staging-dir=gs://scratch/tmp/source" in submitted
    substituted = set(re.findall(r"\$\{_(\w+)\}", (DATAFLOW / "cloudbuild.yaml").read_text()))
    assert substituted == set(re.findall(r"_(\w+)=", submitted.partition("--substitutions=")[2].split()[0]))
    asked = re.findall(r"^ARG (\w+)$", (DATAFLOW / "Dockerfile").read_text(), re.MULTILINE)
    assert set(asked) == substituted


def test_what_is_not_committed_is_not_pushed(ask):
    for arguments in ((), ("--template-only",)):
        done, asked = ask("build.sh", *arguments, TAG="abc-dirty")
        assert (done.returncode, asked) == (2, []) and "the commit abc" in done.stderr


def test_the_rule_of_the_bucket_deletes_scratch_files_and_no_template(ask):
    deleting = [load for load in json.loads((DATAFLOW / "lifecycle.json").read_text())["rule"] if load["action"]["type"] == "Delete"]
    prefixes = [prefix for rule in deleting for prefix in rule["condition"]["matchesPrefix"]]
    assert all("matchesPrefix" in rule["condition"] for rule in deleting)
    _, (_, launched) = launch(ask)
    used = re.findall(r"--(?:staging|temp)-location=gs://scratch/(\S+)", launched)
    assert used and all(f"{item}/".startswith(tuple(prefixes)) for item in used)
    template = re.search(r"--template-file-gcs-location=gs://scratch/(\S+)", launched)[1]
    assert not template.startswith(tuple(prefixes))
