#!/usr/bin/env bash
# Builds the image with Cloud Build, and writes the Flex Template that uses it.
set -euo pipefail

usage() {
  cat <<'END'
usage: PROJECT=... REGION=... BUCKET=... SERVICE_ACCOUNT=... MAX_WORKERS=... BUILD_ACCOUNT=... deploy/dataflow/build.sh [--template-only | --print]

Builds the image and writes the Flex Template gs://BUCKET/templates/recordmill-TAG.json.

  --template-only   Write only the template. The image must exist.
  --print           Print the template, and change nothing.

environment:
  PROJECT           project ID
  REGION            region of the Artifact Registry repository. Use the region of the data, such as europe-west1.
  BUCKET            bucket for the template, and for the sources of a build under tmp/, without gs://
  SERVICE_ACCOUNT   e-mail address of the default service account for the launcher and the workers
  MAX_WORKERS       default maximum number of workers
  BUILD_ACCOUNT     e-mail address of the service account for the build. Not needed for --template-only and --print.
  REPOSITORY        existing Artifact Registry repository for Docker images (default: recordmill)
  TAG               tag of the image and the template (default: the commit, which requires an unchanged working tree)
  SUBNETWORK        subnetwork of the workers, regions/REGION/subnetworks/NAME (default: the default network)
  PUBLIC_ADDRESSES  yes: give the workers public addresses (default: no; the subnetwork needs Private Google Access)
END
}

mode=all
case "${1:-}" in
  "") ;;
  --template-only) mode=template ;;
  --print) mode=print ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
needed=(PROJECT REGION BUCKET SERVICE_ACCOUNT MAX_WORKERS)
if [[ $mode == all ]]; then
  needed+=(BUILD_ACCOUNT)
fi
for name in "${needed[@]}"; do
  if [[ -z "${!name:-}" ]]; then
    echo "build.sh: the environment variable $name is not set. See --help." >&2
    exit 2
  fi
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tag=${TAG:-$(git describe --always --dirty)}
if [[ $tag == *-dirty && $mode != print ]]; then
  echo "build.sh: the working tree has changes since the commit ${tag%-dirty}. Commit them, or set TAG." >&2
  exit 2
fi
image=$REGION-docker.pkg.dev/$PROJECT/${REPOSITORY:-recordmill}/recordmill:$tag
template=gs://$BUCKET/templates/recordmill-$tag.json

if [[ $mode == all ]]; then
  bases=$(python3 deploy/images.py arguments dataflow)
  substitutions="_IMAGE=$image"
  while read -r base; do
    substitutions+=",_$base"
  done <<< "$bases"
  gcloud builds submit . --project="$PROJECT" --region="$REGION" \
    --config=deploy/dataflow/cloudbuild.yaml --substitutions="$substitutions" \
    --service-account="projects/$PROJECT/serviceAccounts/$BUILD_ACCOUNT" --gcs-source-staging-dir="gs://$BUCKET/tmp/source" \
    --ignore-file=deploy/dataflow/Dockerfile.dockerignore
fi

metadata=$(mktemp)
trap 'rm -f "$metadata"' EXIT
python3 deploy/dataflow/main.py --metadata > "$metadata"

options=(
  --project="$PROJECT"
  --image="$image"
  --sdk-language=PYTHON
  --metadata-file="$metadata"
  --service-account-email="$SERVICE_ACCOUNT"
  --max-workers="$MAX_WORKERS"
)
if [[ -n "${SUBNETWORK:-}" ]]; then
  options+=(--subnetwork="$SUBNETWORK")
fi
if [[ "${PUBLIC_ADDRESSES:-no}" != yes ]]; then
  options+=(--disable-public-ips)
fi
if [[ $mode == print ]]; then
  gcloud dataflow flex-template build "$template" "${options[@]}" --print-only
else
  gcloud dataflow flex-template build "$template" "${options[@]}"
  echo "image:    $image"
  echo "template: $template"
fi
