"""Implements the lease of a working directory: a file that identifies the command that uses the directory.

    OUT.incomplete/LEASE    {"run_id": …, "holder": …, "host": …, "boot": …, "process": …, "renewed": …, "job": …}

The command renews its lease periodically. On a local disk, it also locks the directory against other commands on the
same machine. Commands on other machines check the lease, because locks may be invisible on a network file system.
Object stores have no locks, so a lease is taken over with a conditional write. Workers check the lease before they
publish files, so the job of a killed command cannot publish files after another command has taken over.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import signal
import threading
import time
from typing import Any, Callable, Iterator

from beam_pipelines.errors import BusyError, RunError, StillRunningError, StorageError, printable
from beam_pipelines.log import print_message
from beam_pipelines.storage.files import files_at, is_remote

LEASE = "LEASE"
RENEW_SECONDS, LIFE_SECONDS = 20.0, 90.0
_POLL_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Lease:
    """The contents of a lease.

    Attributes:
        run_id: The ID of the run. A command that resumes the run keeps the ID.
        holder: The unique ID of the command.
        host: The name of the host that runs the command.
        process_id: The process ID of the command on that host.
        process: A string that identifies the process even if process IDs are reused. See `describe_process`.
        boot: The boot ID of the machine. The host name is not enough, for example in containers.
        namespace: The PID namespace of the process.
        started: The start time of the command, in seconds since 1970.
        renewed: The time of the last renewal, in seconds since 1970. 0 if the lease was released.
        engine: The name of the engine, as in `--runner`.
        job: The name of the job on the engine.
        is_detached: Whether the job continues after the command ends, as with Dataflow without `--wait`.
        command: The name of the command: `prepare`, `transform`, `export` or `analyze`.
    """

    run_id: str
    holder: str
    host: str = ""
    process_id: int = 0
    process: str = ""
    started: float = 0
    renewed: float = 0
    engine: str = ""
    job: str = ""
    is_detached: bool = False
    command: str = "prepare"
    boot: str = ""
    namespace: str = ""

    @property
    def is_live(self) -> bool:
        """Whether the process that holds the lease may still be running."""
        if self.is_detached or not self.renewed:
            return self.is_detached
        if self.can_see_holder:
            return self.process == describe_process(self.process_id)
        return self.seconds_left > 0

    @property
    def can_see_holder(self) -> bool:
        """Whether this process shares a PID namespace with the holder, so that it can check whether the holder is
        running."""
        return (self.boot, self.namespace) == (boot_id(), _namespace())

    @property
    def is_elsewhere(self) -> bool:
        """Whether the holder may still be running on another machine."""
        return not self.is_detached and self.boot != boot_id() and bool(self.renewed) and self.seconds_left > 0

    @property
    def seconds_left(self) -> float:
        """The time in seconds until the lease expires if it is not renewed."""
        return self.renewed + LIFE_SECONDS - time.time()

    def describe(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started))
        who = f"job {self.job} on {self.engine}" if self.is_detached else f"process {self.process_id} on {self.host}"
        return f"{who}, since {since}"


def boot_id() -> str:
    """Returns the boot ID of this machine, which all its containers share. Without Linux, returns the host name."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def describe_process(number: int) -> str:
    """Identifies a process by its start time and the boot ID. Returns an empty string for a missing process."""
    if not os.path.exists("/proc/self/stat"):  # Without Linux, only the process ID is known.
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return ""
        except OSError:  # The process belongs to another user.
            pass
        return str(number)
    try:
        state, *others = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else f"{others[18]} {boot_id()}"  # A zombie process has ended.
    except OSError:
        return ""


def make_lease(run_id: str, holder: str, engine: str = "", job: str = "", command: str = "prepare") -> Lease:
    """Creates a lease for this process."""
    now = time.time()
    process = {"host": platform.node(), "process_id": os.getpid(), "process": describe_process(os.getpid())}
    machine = {"boot": boot_id(), "namespace": _namespace()}
    return Lease(run_id, holder, started=now, renewed=now, engine=engine, job=job, command=command, **process, **machine)


def read_lease(directory: str) -> Lease | None:
    """Reads the lease of a directory. Returns None if the lease is missing or corrupt."""
    path = f"{directory}/{LEASE}"
    try:
        return _decode(files_at(path).read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _decode(data: bytes) -> Lease | None:
    try:
        return Lease(**json.loads(data))
    except (ValueError, TypeError):  # The machine crashed while the lease was written.
        return None


def _encode(lease: Lease) -> bytes:
    return json.dumps(dataclasses.asdict(lease), indent=1).encode()


def check_lease(directory: str, holder: str) -> None:
    """Checks that the command still holds the lease. Workers call this function before they publish files.

    If `holder` is empty, nothing is checked, because the command has no lease and no workers.

    Raises:
        RunError: Another command has taken over the lease, or has ended the run.
    """
    if not holder:
        return
    try:
        lease = read_lease(directory)
    except OSError as error:
        raise StorageError(f"{printable(directory)}/{LEASE} could not be read: {error.strerror or error}") from error
    if lease is None or lease.holder != holder:
        who = lease.describe() if lease else "its lease is missing"
        message = f"another run has taken over this output ({who}). This run has published nothing."
        raise RunError(f"{printable(directory)}: {message}")


class HeldLease:
    """A lease that `held_lease` has acquired. A thread renews the lease until it is released."""

    def __init__(self, directory: str, lease: Lease, version: str, lost: Callable[[], None]) -> None:
        self._directory, self._lease, self._version, self._lost = directory, lease, version, lost
        self._lock, self._end = threading.Lock(), threading.Event()
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def detach(self) -> None:
        """Marks the lease as detached, so that it stays valid while the job continues without this process."""
        self._end.set()
        self._write(is_detached=True)

    def is_owned(self) -> bool:
        """Returns whether this process still holds the lease."""
        try:
            lease = read_lease(self._directory)
        except OSError:
            return False
        return lease is not None and lease.holder == self._lease.holder

    def release(self) -> None:
        """Releases the lease if this process still holds it. A detached lease is kept."""
        self._end.set()
        if not self._lease.is_detached:
            with contextlib.suppress(OSError):  # Without a response of the store, the lease expires later.
                self._write(renewed=0.0)

    def _write(self, **changes: Any) -> bool:
        with self._lock:
            self._lease = dataclasses.replace(self._lease, **changes)
            path = f"{self._directory}/{LEASE}"
            version = files_at(path).write_if(path, _encode(self._lease), self._version)
            self._version = version or self._version
            return version is not None

    def _keep(self) -> None:
        while not self._end.wait(RENEW_SECONDS):
            with contextlib.suppress(OSError):  # After a temporary error, the next renewal may succeed.
                if self._write(renewed=time.time()) or self._end.is_set():
                    continue
                lease = read_lease(self._directory)
                if lease and lease.holder != self._lease.holder:
                    self._lost()
                return  # Otherwise, the run has ended and removed the lease.


def stop_process() -> None:
    """Ends this process with SIGTERM after its lease was lost."""
    print_message("another run has taken over the output, so this run stops")
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def held_lease(
    directory: str,
    lease: Lease,
    message_start: str,
    is_at_work: Callable[[Lease], bool] = lambda other: True,
    lost: Callable[[], None] = stop_process,
) -> Iterator[HeldLease]:
    """Context manager that acquires, renews and releases the lease of a directory, which must be locked on a disk.

    After a `StillRunningError`, the lease is detached instead of released, because the job continues.

    Args:
        directory: The path or URL of the directory.
        lease: The lease to write.
        message_start: The option and path with which error messages begin.
        is_at_work: A function that returns whether the job of a detached lease in a store is still active.
        lost: A function to call, in another thread, if another command takes over the lease.

    Raises:
        BusyError: Another command holds the lease.
        StorageError: The lease cannot be written.
    """
    try:
        held = HeldLease(directory, lease, _acquire(directory, lease, message_start, is_at_work), lost)
    except OSError as error:
        raise StorageError(f"{printable(directory)}/{LEASE} could not be written: {error.strerror or error}") from error
    try:
        yield held
    except StillRunningError:
        with contextlib.suppress(OSError):  # Without a response of the store, the lease expires later.
            held.detach()
        raise
    finally:
        held.release()


def _acquire(directory: str, lease: Lease, message_start: str, is_at_work: Callable[[Lease], bool]) -> str:
    path, files = f"{directory}/{LEASE}", files_at(directory)
    while True:
        try:
            data, version = files.read_versioned(path)
            current = _decode(data)
        except FileNotFoundError:
            current, version = None, None
        if current and is_remote(directory) and (is_at_work(current) if current.is_detached else current.is_live):
            raise busy_error(current, message_start)
        if taken := files.write_if(path, _encode(lease), version):
            return taken


def wait_for_lease(directory: str, message_start: str) -> None:
    """Waits until the lease of a killed command in an object store expires. Raises `BusyError` if it is renewed."""
    first = lease = read_lease(directory)
    while lease and lease.is_live and not lease.is_detached:
        if lease != first:
            raise busy_error(lease, message_start)
        if lease is first:
            print_message(f"{message_start}: waiting for {_busy_text(lease)}")
        time.sleep(_POLL_SECONDS)
        lease = read_lease(directory)


def busy_error(lease: Lease, message_start: str) -> BusyError:
    """Returns the error to raise if another command holds a lease."""
    return BusyError(f"{message_start}: another run is writing to it: {_busy_text(lease)}")


def _busy_text(lease: Lease) -> str:
    if lease.is_detached or lease.can_see_holder:
        return lease.describe()
    return f"{lease.describe()}; if it was killed, its lease expires in {max(lease.seconds_left, 1):.0f} s"
