#!/usr/bin/env bash
# Builds the image with Cloud Build, and from it the Flex Template.
set -euo pipefail

usage() {
  cat <<'END'
usage: PROJECT=... REGION=... BUCKET=... deploy/dataflow/build.sh [--template-only | --print]

Builds the image and writes the Flex Template gs://BUCKET/templates/recordmill-TAG.json.

  --template-only   the image is there already: write the template only
  --print           print the template and change nothing

environment:
  PROJECT      id of the project
  REGION       of the Artifact Registry repository: the data's own, such as europe-west1
  BUCKET       bucket of the template, without gs://
  REPOSITORY   Artifact Registry repository of Docker images, which exists (default: recordmill)
  TAG          of the image and the template (default: the commit, or "latest" outside a checkout)
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
for name in PROJECT REGION BUCKET; do
  if [[ -z "${!name:-}" ]]; then
    echo "build.sh: $name is not set (see --help)" >&2
    exit 2
  fi
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tag=${TAG:-$(git describe --always --dirty 2>/dev/null || echo latest)}
image=$REGION-docker.pkg.dev/$PROJECT/${REPOSITORY:-recordmill}/recordmill:$tag
template=gs://$BUCKET/templates/recordmill-$tag.json

if [[ $mode == all ]]; then
  gcloud builds submit . --project="$PROJECT" --region="$REGION" \
    --config=deploy/dataflow/cloudbuild.yaml --substitutions="_IMAGE=$image" \
    --ignore-file=deploy/dataflow/Dockerfile.dockerignore
fi

options=(--project="$PROJECT" --image="$image" --sdk-language=PYTHON --metadata-file=deploy/dataflow/metadata.json)
if [[ $mode == print ]]; then
  gcloud dataflow flex-template build "$template" "${options[@]}" --print-only
else
  gcloud dataflow flex-template build "$template" "${options[@]}"
  echo "image:    $image"
  echo "template: $template"
fi
