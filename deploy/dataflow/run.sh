#!/usr/bin/env bash
# Launches a job from the Flex Template that build.sh wrote.
set -euo pipefail

usage() {
  cat <<'END'
usage: PROJECT=... REGION=... BUCKET=... SERVICE_ACCOUNT=... MAX_WORKERS=... \
       deploy/dataflow/run.sh [--wait] INPUT OUTPUT [NAME=VALUE...] [--NAME=VALUE...]

Launches a Dataflow job that prepares INPUT as the data set OUTPUT, both gs:// paths. NAME=VALUE is a parameter of the
template: an option of `recordmill prepare` (num_shards=64, resume=true). --NAME=VALUE is an option of Beam's.

  deploy/dataflow/run.sh --wait gs://raw/flowers gs://data/flowers splits=train=0.9,validation=0.1 resume=true

The job's name is made of the output: while a job with it is active, a second start launches none and says so.

  --wait   stay until the job has ended, this one or the one that was active: exit code 0 where it is done, 1 where it failed or
           was cancelled. Ctrl-C ends the waiting, not the job.

environment:
  PROJECT           id of the project
  REGION            of the workers: that of both buckets
  BUCKET            bucket of the template, and of scratch files under tmp/, without gs://
  SERVICE_ACCOUNT   e-mail address of the account that launcher and workers run as
  MAX_WORKERS       how many workers at most: the brake on what a job costs
  TAG               of the template (default: the commit)
  JOB_NAME          (default: recordmill-NAME-DIGEST, of the output)
  MACHINE_TYPE      of the workers (default: e2-standard-4)
  SUBNETWORK        regions/REGION/subnetworks/NAME of the workers (default: the default network)
  PUBLIC_ADDRESSES  yes: workers have public addresses (default: no; the subnetwork needs Private Google Access)
  FLEXRS            yes: cheaper workers, that start within six hours (default: no)
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
    echo "run.sh: $name is not set (see --help)" >&2
    exit 2
  fi
done
input=$1 output=${2%/}
shift 2

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tag=${TAG:-$(git describe --always)}
place=(--project="$PROJECT" --region="$REGION")

# The same name as `recordmill prepare --runner=DataflowRunner` gives, so that the two see each other's jobs.
data_set=$(tr '[:upper:]' '[:lower:]' <<< "${output##*/}" | tr -cs 'a-z0-9\n' '-')
data_set=${data_set:0:40}
data_set=${data_set#-}
digest=$(printf %s "$output" | sha256sum)
job_name=${JOB_NAME:-recordmill-${data_set%-}-${digest:0:8}}

# "^|^" makes | what stands between items: values have commas.
parameters="^|^input=$input|output=$output"
beam_options="^|^"
for argument in "$@"; do
  if [[ $argument != *=* || $argument == *"|"* ]]; then
    echo "run.sh: $argument: expected NAME=VALUE or --NAME=VALUE, without |" >&2
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
      echo "run.sh: the job ended as ${state#JOB_STATE_}; its page says why" >&2
      exit 1
      ;;
  esac
  sleep 30
done
