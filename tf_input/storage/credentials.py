"""Finds credentials and endpoints where the command-line tools of each cloud look for them, as options for obstore.

Without these options, obstore reads only environment variables. Without credentials, obstore waits for the metadata
server of a cloud, even on machines outside that cloud. This module contacts the metadata server only once, with a short
timeout. Requests without credentials are not signed, and can read public data. If a request for private data fails, the
error message names the missing credentials.
"""

import http.client
import importlib.util
import json
import os
import pathlib
from typing import Any

_METADATA_HOST, _METADATA_SECONDS = "169.254.169.254", 1.0
_MAX_ANSWER_BYTES = 1 << 16
_FAMILIES = {"s3a": "s3", **dict.fromkeys(("azure", "adl", "abfs", "abfss"), "az")}
_GOOGLE_KEYS = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SKIP_SIGNATURE",
)
_AMAZON_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)

_AZURE_KEYS = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_USE_AZURE_CLI",
    "AZURE_SKIP_SIGNATURE",
)


def google_options() -> dict[str, Any]:
    """Returns the options for obstore's GCSStore with the user's credentials, or for unsigned requests."""
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        url = emulator if "://" in emulator else f"http://{emulator}"
        unsigned = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        return {"service_account_key": json.dumps({"gcs_base_url": url.rstrip("/"), **unsigned})}
    if any(os.environ.get(name) for name in _GOOGLE_KEYS):
        return {}
    folder = os.environ.get("CLOUDSDK_CONFIG") or pathlib.Path.home() / ".config" / "gcloud"
    if (path := pathlib.Path(folder, "application_default_credentials.json")).is_file():
        return {"application_credentials": os.fspath(path)}
    host = os.environ.get("GCE_METADATA_HOST", _METADATA_HOST)
    answer = _ask(host, "/", {"Metadata-Flavor": "Google"}, "Metadata-Flavor")
    return {"skip_signature": True} if answer is None else {}


def amazon_options() -> dict[str, Any]:
    """Returns the options for obstore's S3Store with the user's credentials, or for unsigned requests."""
    if any(os.environ.get(name) for name in _AMAZON_KEYS):
        return {}
    if importlib.util.find_spec("boto3") is None:
        return {} if _has_amazon_role() else {"skip_signature": True}
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:  # boto3 finds profiles, single sign-on and the machine's role
        return {"credential_provider": Boto3CredentialProvider()}
    except ValueError:  # no credentials
        return {"skip_signature": True}


def azure_options() -> dict[str, Any]:
    """Returns the options for obstore's AzureStore with the user's credentials, or for unsigned requests."""
    if any(os.environ.get(name) for name in _AZURE_KEYS):
        return {}
    answer = _ask(_METADATA_HOST, "/metadata/instance?api-version=2021-02-01", {"Metadata": "true"})
    return {"skip_signature": True} if answer is None else {}


def missing_keys(scheme: str) -> str:
    """Returns advice about missing credentials after a request was rejected; "" if credentials were found."""
    options, where = {
        "gs": (
            google_options,
            "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
        ),
        "s3": (
            amazon_options,
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, use a machine with a role, or install boto3 for "
            "AWS_PROFILE",
        ),
        "az": (
            azure_options,
            "Set AZURE_STORAGE_ACCOUNT_KEY, or run `az login` and set AZURE_USE_AZURE_CLI=true",
        ),
    }.get(_FAMILIES.get(scheme, scheme), (dict, ""))
    return f"; no credentials were found. {where}" if options().get("skip_signature") else ""


def _has_amazon_role() -> bool:
    """Returns whether this machine is an EC2 instance with a role, for which obstore can get credentials."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    host = os.environ.get("AWS_METADATA_ENDPOINT", _METADATA_HOST).rpartition("://")[2].rstrip("/")
    token = _ask(host, "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    if not token:  # not an EC2 machine, because EC2 has had tokens since 2019
        return False
    return bool(_ask(host, "/latest/meta-data/iam/security-credentials/", {"X-aws-ec2-metadata-token": token.decode()}))


def _ask(host: str, path: str, headers: dict[str, str], header: str = "", method: str = "GET") -> bytes | None:
    """Returns the response of a cloud's metadata server, or None if the server or the expected header is missing."""
    connection = http.client.HTTPConnection(host, timeout=_METADATA_SECONDS)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        is_good = response.status == 200 and (not header or response.getheader(header) is not None)
        return response.read(_MAX_ANSWER_BYTES) if is_good else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
