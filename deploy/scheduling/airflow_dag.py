"""An Airflow DAG that prepares a dataset from new images each night.

With --resume, the same command starts a new run, resumes an interrupted run, or succeeds if the dataset is complete.
Therefore retries, backfills and manually cleared tasks can all run the same command. A second concurrent command is
rejected. The exit code determines whether Airflow retries. Copy the file into the DAGs folder. The workers need
recordmill on their PATH.
"""

import datetime
import json
import pathlib
import subprocess
import tempfile

from airflow.exceptions import AirflowException, AirflowFailException
from airflow.sdk import dag, task

INPUT, OUTPUT = "gs://raw/flowers", "gs://data/flowers"
SECONDS = 6 * 3600
_DO_NOT_RETRY = 2  # The exit code for wrong usage or bad data, which a retry cannot fix.


def command(output: str, error_json: str) -> list[str]:
    """Returns the command for one output."""
    options = ["--resume", f"--job_timeout={SECONDS}", "--log_format=json", f"--error_json={error_json}"]
    return ["recordmill", "prepare", f"--input={INPUT}", f"--output={output}", *options]


def run(arguments: list[str], error_json: str) -> None:
    """Runs the command. The output of the command appears in the log of the task. Raises the Airflow exception that
    corresponds to the exit code."""
    process = subprocess.Popen(arguments)
    try:
        code = process.wait()
    except BaseException:  # When Airflow ends the task, the command cancels its job first.
        process.terminate()
        process.wait()
        raise
    if code == 0:
        return
    path = pathlib.Path(error_json)
    message = json.loads(path.read_text())["message"] if path.exists() else "See the log of the task."
    raise (AirflowFailException if code == _DO_NOT_RETRY else AirflowException)(f"exit code {code}: {message}")


@dag(
    schedule="0 2 * * *",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": datetime.timedelta(minutes=5), "retry_exponential_backoff": True},
)
def prepare_flowers() -> None:
    # Later than --job_timeout, whose error states the reason.
    @task(execution_timeout=datetime.timedelta(seconds=SECONDS + 900))
    def prepare(ds: str | None = None) -> None:  # Airflow passes the date.
        with tempfile.TemporaryDirectory() as folder:
            error_json = f"{folder}/error.json"
            run(command(f"{OUTPUT}/{ds}", error_json), error_json)

    prepare()


prepare_flowers()
