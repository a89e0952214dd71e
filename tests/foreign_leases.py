"""Leases that look like the leases of commands on another machine."""

import dataclasses
import json
import time

from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.lease import LEASE, Lease, make_lease


def foreign_lease(holder: str = "its", age: float = 0, **changes: object) -> Lease:
    """Returns a lease that a command on another machine renewed `age` seconds ago."""
    return dataclasses.replace(make_lease("run", holder), host="elsewhere", boot="another", renewed=time.time() - age, **changes)


def write_lease(directory: str, lease: Lease) -> None:
    """Writes the lease of a directory on a disk or in a store, even if another command holds it."""
    files_at(directory).write(f"{directory}/{LEASE}", json.dumps(dataclasses.asdict(lease)).encode())
