#!/usr/bin/env bash
# Launches a job from the Flex Template that build.sh wrote.
set -euo pipefail

usage() {
  cat <<'END'
usage: PROJECT=... REGION=... BUCKET=... deploy/dataflow/run.sh INPUT OUTPUT [NAME=VALUE...] [--NAME=VALUE...]

Launches a Dataflow job that prepares the folder INPUT as the data set OUTPUT, both gs:// paths. NAME=VALUE is a parameter
of the template: an option of `recordmill prepare` (num_shards=64, overwrite=true). --NAME=VALUE is an option of Beam's.

  deploy/dataflow/run.sh gs://raw/flowers gs://data/flowers splits=train=0.9,validation=0.1

environment:
  PROJECT           id of the project
  REGION            of the workers: that of both buckets
  BUCKET            bucket of the template, and of scratch files under tmp/, without gs://
  TAG               of the template (default: the commit, or "latest" outside a checkout)
  JOB_NAME          (default: recordmill-DATE-TIME)
  MACHINE_TYPE      of the workers (default: e2-standard-4)
  MAX_WORKERS       how many of them at most (default: what the project's quota allows)
  SERVICE_ACCOUNT   e-mail address of the account that launcher and workers run as (default: Compute Engine's)
  SUBNETWORK        regions/REGION/subnetworks/NAME, for workers without public addresses (default: the default network)
END
}

case "${1:-}" in
  -h | --help) usage; exit 0 ;;
esac
if (($# < 2)); then
  usage >&2
  exit 2
fi
for name in PROJECT REGION BUCKET; do
  if [[ -z "${!name:-}" ]]; then
    echo "run.sh: $name is not set (see --help)" >&2
    exit 2
  fi
done
input=$1 output=$2
shift 2

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tag=${TAG:-$(git describe --always --dirty 2>/dev/null || echo latest)}

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
  --project="$PROJECT"
  --region="$REGION"
  --template-file-gcs-location="gs://$BUCKET/templates/recordmill-$tag.json"
  --staging-location="gs://$BUCKET/tmp"
  --temp-location="gs://$BUCKET/tmp"
  --worker-machine-type="${MACHINE_TYPE:-e2-standard-4}"
  --parameters="$parameters"
)
if [[ $beam_options != "^|^" ]]; then
  options+=(--additional-pipeline-options="${beam_options%|}")
fi
if [[ -n "${MAX_WORKERS:-}" ]]; then
  options+=(--max-workers="$MAX_WORKERS")
fi
if [[ -n "${SERVICE_ACCOUNT:-}" ]]; then
  options+=(--service-account-email="$SERVICE_ACCOUNT")
fi
if [[ -n "${SUBNETWORK:-}" ]]; then
  options+=(--subnetwork="$SUBNETWORK" --disable-public-ips)
fi
gcloud dataflow flex-template run "${JOB_NAME:-recordmill-$(date -u +%Y%m%d-%H%M%S)}" "${options[@]}"
