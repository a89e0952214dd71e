"""Where each cloud's own tools look for keys and endpoints, as obstore's options; obstore itself looks in the environment.

What obstore alone would do where there are none is to wait for the metadata server of a cloud that this is not; here that is asked
once, for a moment. Without any keys requests are not signed: public data are read, and others say what is missing.
"""

import http.client
import importlib.util
import json
import os
import pathlib
from typing import Any

_METADATA_SECONDS = 1.0
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

GOOGLE_ADVICE = "there are no keys for it: `gcloud auth application-default login` makes some, GOOGLE_APPLICATION_CREDENTIALS names a file"
AMAZON_ADVICE = "there are no keys for it: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are some, and with boto3 those of AWS_PROFILE"


def google_options() -> dict[str, Any]:
    """Of obstore's GCSStore."""
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        url = emulator if "://" in emulator else f"http://{emulator}"
        unsigned = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        return {"service_account_key": json.dumps({"gcs_base_url": url.rstrip("/"), **unsigned})}
    if any(os.environ.get(name) for name in _GOOGLE_KEYS):
        return {}
    folder = os.environ.get("CLOUDSDK_CONFIG") or pathlib.Path.home() / ".config" / "gcloud"
    if (found := pathlib.Path(folder, "application_default_credentials.json")).is_file():
        return {"application_credentials": os.fspath(found)}
    return {} if _is_google_machine() else {"skip_signature": True}


def amazon_options() -> dict[str, Any]:
    """Of obstore's S3Store."""
    if any(os.environ.get(name) for name in _AMAZON_KEYS):
        return {}
    if importlib.util.find_spec("boto3") is None:
        return {"skip_signature": True}
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:  # profiles, single sign-on, the machine's role
        return {"credential_provider": Boto3CredentialProvider()}
    except ValueError:  # none of them
        return {"skip_signature": True}


def _is_google_machine() -> bool:
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
    connection = http.client.HTTPConnection(host, timeout=_METADATA_SECONDS)
    try:
        connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().getheader("Metadata-Flavor") == "Google"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
