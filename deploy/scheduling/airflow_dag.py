"""An Airflow DAG that prepares a data set each night from what has arrived.

The command is always right: with --resume it begins where nothing is there, goes on where a part is, and is done where the data set is whole. So
a retry, a backfill and a run that is cleared by hand are the same command again; a second one beside it is refused. Its exit code says what is
worth a retry. Copy it into the DAGs' folder; workers need recordmill on their PATH.
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
_DO_NOT_RETRY = 2  # wrong use or bad data: again is no better


def command(output: str, error_json: str) -> list[str]:
    """What is run, for each output once."""
    options = ["--resume", f"--job_timeout={SECONDS}", "--log_format=json", f"--error_json={error_json}"]
    return ["recordmill", "prepare", f"--input={INPUT}", f"--output={output}", *options]


def run(arguments: list[str], error_json: str) -> None:
    """Runs it, with its log in the task's; raises what Airflow is to make of its exit code."""
    process = subprocess.Popen(arguments)
    try:
        code = process.wait()
    except BaseException:  # Airflow ends the task: the command cancels its job first
        process.terminate()
        process.wait()
        raise
    if code == 0:
        return
    path = pathlib.Path(error_json)
    told = json.loads(path.read_text())["message"] if path.exists() else "see the log"
    raise (AirflowFailException if code == _DO_NOT_RETRY else AirflowException)(f"exit code {code}: {told}")


@dag(
    schedule="0 2 * * *",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": datetime.timedelta(minutes=5), "retry_exponential_backoff": True},
)
def prepare_flowers() -> None:
    @task(execution_timeout=datetime.timedelta(seconds=SECONDS + 900))  # later than --job_timeout, which says why
    def prepare(ds: str | None = None) -> None:  # the date that Airflow gives
        with tempfile.TemporaryDirectory() as folder:
            error_json = f"{folder}/error.json"
            run(command(f"{OUTPUT}/{ds}", error_json), error_json)

    prepare()


prepare_flowers()
