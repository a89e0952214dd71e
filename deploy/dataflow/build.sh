#!/usr/bin/env bash
# Builds the image with Cloud Build, and from it the Flex Template.
set -euo pipefail

usage() {
  cat <<'END'
usage: PROJECT=... REGION=... BUCKET=... SERVICE_ACCOUNT=... MAX_WORKERS=... BUILD_ACCOUNT=... deploy/dataflow/build.sh [--template-only | --print]

Builds the image and writes the Flex Template gs://BUCKET/templates/recordmill-TAG.json.

  --template-only   the image is there already: write the template only
  --print           print the template and change nothing

environment:
  PROJECT           id of the project
  REGION            of the Artifact Registry repository: the data's own, such as europe-west1
  BUCKET            bucket of the template, and of the sources of a build under tmp/, without gs://
  SERVICE_ACCOUNT   e-mail address of the account that launcher and workers run as, where a launch names no other
  MAX_WORKERS       how many workers at most, where a launch says no other number
  BUILD_ACCOUNT     e-mail address of the account that builds; --template-only and --print need none
  REPOSITORY        Artifact Registry repository of Docker images, which exists (default: recordmill)
  TAG               of the image and the template (default: the commit; a tree that differs from it is refused)
  SUBNETWORK        regions/REGION/subnetworks/NAME of the workers (default: the default network)
  PUBLIC_ADDRESSES  yes: workers have public addresses (default: no; the subnetwork needs Private Google Access)
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
    echo "build.sh: $name is not set (see --help)" >&2
    exit 2
  fi
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tag=${TAG:-$(git describe --always --dirty)}
if [[ $tag == *-dirty && $mode != print ]]; then
  echo "build.sh: the tree differs from the commit ${tag%-dirty}: commit it, or name the image in TAG" >&2
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

options=(
  --project="$PROJECT"
  --image="$image"
  --sdk-language=PYTHON
  --metadata-file=deploy/dataflow/metadata.json
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
