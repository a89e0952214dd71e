#!/usr/bin/env bash
# Launches a job from the Flex Template that build.sh wrote.
set -euo pipefail

usage() {
  cat <<'END'
usage: PROJECT=... REGION=... BUCKET=... SERVICE_ACCOUNT=... MAX_WORKERS=... \
       deploy/dataflow/run.sh [--wait] INPUT OUTPUT [NAME=VALUE...] [--NAME=VALUE...]

Launches a Dataflow job that writes the dataset OUTPUT from INPUT. Both are gs:// paths. NAME=VALUE is a parameter of the
template, which is an option of `recordmill prepare` (num_shards=64, resume=true). --NAME=VALUE is an option of Beam.

  deploy/dataflow/run.sh --wait gs://raw/flowers gs://data/flowers splits=train=0.9,validation=0.1 resume=true

The name of the job is derived from OUTPUT. While a job with this name is active, run.sh reports it and launches no second job.

  --wait   Wait until the new or the active job ends. The exit code is 0 if the job succeeds, and 1 if it fails or is
           canceled. Ctrl-C ends the waiting, not the job.

environment:
  PROJECT           project ID
  REGION            region of the workers and of both buckets
  BUCKET            bucket for the template, and for temporary files under tmp/, without gs://
  SERVICE_ACCOUNT   e-mail address of the service account for the launcher and the workers
  MAX_WORKERS       maximum number of workers, which limits the cost of a job
  TAG               tag of the template (default: the commit)
  JOB_NAME          name of the job (default: recordmill-NAME-DIGEST, derived from OUTPUT)
  MACHINE_TYPE      machine type of the workers (default: e2-standard-4)
  SUBNETWORK        subnetwork of the workers, regions/REGION/subnetworks/NAME (default: the default network)
  PUBLIC_ADDRESSES  yes: give the workers public addresses (default: no; the subnetwork needs Private Google Access)
  FLEXRS            yes: use cheaper workers, which start within six hours (default: no)
END
}

wait=no
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --wait) wait=yes; shift ;;
esac
if (($# < 2)); then
  usage >&2
  exit 2
fi
for name in PROJECT REGION BUCKET SERVICE_ACCOUNT MAX_WORKERS; do
  if [[ -z "${!name:-}" ]]; then
    echo "run.sh: the environment variable $name is not set. See --help." >&2
    exit 2
  fi
done
input=$1 output=${2%/}
shift 2

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tag=${TAG:-$(git describe --always)}
place=(--project="$PROJECT" --region="$REGION")

# `recordmill prepare --runner=DataflowRunner` uses the same job name, so that each detects active jobs of the other.
data_set=$(tr '[:upper:]' '[:lower:]' <<< "${output##*/}" | tr -cs 'a-z0-9\n' '-')
data_set=${data_set:0:40}
data_set=${data_set#-}
digest=$(printf %s "$output" | sha256sum)
job_name=${JOB_NAME:-recordmill-${data_set%-}-${digest:0:8}}

# "^|^" makes | the separator of items, because values can contain commas.
parameters="^|^input=$input|output=$output"
beam_options="^|^"
for argument in "$@"; do
  if [[ $argument != *=* || $argument == *"|"* ]]; then
    echo "run.sh: $argument is not a parameter. Give NAME=VALUE or --NAME=VALUE, without |." >&2
    exit 2
  fi
  case $argument in
    --*) beam_options+="${argument#--}|" ;;
    *) parameters+="|$argument" ;;
  esac
done

options=(
  "${place[@]}"
  --template-file-gcs-location="gs://$BUCKET/templates/recordmill-$tag.json"
  --staging-location="gs://$BUCKET/tmp"
  --temp-location="gs://$BUCKET/tmp"
  --worker-machine-type="${MACHINE_TYPE:-e2-standard-4}"
  --max-workers="$MAX_WORKERS"
  --service-account-email="$SERVICE_ACCOUNT"
  --parameters="$parameters"
)
if [[ $beam_options != "^|^" ]]; then
  options+=(--additional-pipeline-options="${beam_options%|}")
fi
if [[ -n "${SUBNETWORK:-}" ]]; then
  options+=(--subnetwork="$SUBNETWORK")
fi
if [[ "${PUBLIC_ADDRESSES:-no}" != yes ]]; then
  options+=(--disable-public-ips)
fi
if [[ "${FLEXRS:-no}" == yes ]]; then
  options+=(--flexrs-goal=COST_OPTIMIZED)
fi

job=$(gcloud dataflow jobs list "${place[@]}" --status=active --filter="name=$job_name" --format="value(id)" --verbosity=error)
if [[ -n $job ]]; then
  said="already running"
else
  job=$(gcloud dataflow flex-template run "$job_name" "${options[@]}" --format="value(job.id)")
  said="launched"
fi
echo "$said: $job_name, https://console.cloud.google.com/dataflow/jobs/$REGION/$job?project=$PROJECT"
if [[ $wait == no ]]; then
  exit 0
fi

while true; do
  state=$(gcloud dataflow jobs describe "$job" "${place[@]}" --format="value(currentState)")
  case $state in
    JOB_STATE_DONE) echo "done: $output"; exit 0 ;;
    JOB_STATE_FAILED | JOB_STATE_CANCELLED | JOB_STATE_DRAINED | JOB_STATE_UPDATED)
      echo "run.sh: the job ended with state ${state#JOB_STATE_}. See its page for the reason." >&2
      exit 1
      ;;
  esac
  sleep 30
done
