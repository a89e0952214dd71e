"""The lease in a directory in which a run works: it says whose the directory is, and who else may take it, and when.

    OUT.incomplete/LEASE    {"run_id": …, "holder": …, "host": …, "boot": …, "process": …, "renewed": …, "job": …}

The lease is renewed while the command lives. On a disk the command also has a lock on the directory. That lock decides between commands of
one machine; other machines go by the lease, as locks on a network file system may be local to each machine. A store has no locks: there the
lease is taken over by a conditional write, which one of two wins. Whoever publishes looks
whether the lease is still that of the command that began it: a job that was left behind by a killed command then ends, and changes nothing.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import threading
import time
from typing import Any, Callable, Iterator

from beam_pipelines.errors import BusyError, RunError, StillRunningError, StorageError, printable
from beam_pipelines.log import say
from beam_pipelines.storage.files import files_at, write_file

LEASE = "LEASE"
RENEW_SECONDS, LIFE_SECONDS = 20.0, 90.0
_LOOK_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Lease:
    """What a lease says.

    Attributes:
        run_id: The id of the run; it stays where another command goes on with it.
        holder: The id of the command, another one each time.
        host: The name of the host where the command runs.
        process_id: The id of the command's process on that host.
        process: A text that tells the process from all others of that host: see `describe_process`.
        boot: The id of the start of that machine; equal host names prove nothing, for example in containers.
        namespace: The PID namespace in which `process_id` counts.
        started: The time when the command began, in seconds since 1970.
        renewed: The time when the lease was last renewed, in seconds since 1970; 0: it was given back.
        engine: The name of the engine, as `--runner` said it.
        job: The name of the job on that engine.
        is_detached: Whether the command has ended, and the job goes on (`--no_wait`).
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
        """Whether the holder may be at work, as far as the lease alone tells."""
        if self.is_detached or not self.renewed:
            return self.is_detached
        if self.can_look:
            return self.process == describe_process(self.process_id)
        return self.seconds_left > 0

    @property
    def can_look(self) -> bool:
        """Whether this process can see the holder's process: both count in one PID namespace since one start of the machine."""
        return (self.boot, self.namespace) == (boot_id(), _namespace())

    @property
    def is_elsewhere(self) -> bool:
        """Whether the holder may be at work on another machine, whose locks on a shared disk this machine may not see."""
        return not self.is_detached and self.boot != boot_id() and bool(self.renewed) and self.seconds_left > 0

    @property
    def seconds_left(self) -> float:
        """Until it runs out, where it is not renewed."""
        return self.renewed + LIFE_SECONDS - time.time()

    def describe(self) -> str:
        """Who holds it, for a message."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started))
        who = f"job {self.job} on {self.engine}" if self.is_detached else f"process {self.process_id} on {self.host}"
        return f"{who}, since {since}"


def boot_id() -> str:
    """Returns the id of the last start of this machine, which all its containers share; without Linux, the name of the host."""
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
    """Returns when a process began, and after which start of the machine; an empty text if no process has that number."""
    if not os.path.exists("/proc/self/stat"):  # not Linux: its number has to do
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return ""
        except OSError:  # another user's
            pass
        return str(number)
    try:
        state, *others = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else f"{others[18]} {boot_id()}"  # a zombie does nothing any more
    except OSError:
        return ""


def make_lease(run_id: str, holder: str, engine: str = "", job: str = "", command: str = "prepare") -> Lease:
    """Makes a lease that this process holds from now on."""
    now = time.time()
    process = {"host": platform.node(), "process_id": os.getpid(), "process": describe_process(os.getpid())}
    place = {"boot": boot_id(), "namespace": _namespace()}
    return Lease(run_id, holder, started=now, renewed=now, engine=engine, job=job, command=command, **process, **place)


def read_lease(directory: str) -> Lease | None:
    """The lease of a directory; None where there is none, or half of one."""
    path = f"{directory}/{LEASE}"
    try:
        return _decode(files_at(path).read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _decode(data: bytes) -> Lease | None:
    try:
        return Lease(**json.loads(data))
    except (ValueError, TypeError):  # after a crash of the machine
        return None


def _encode(lease: Lease) -> bytes:
    return json.dumps(dataclasses.asdict(lease), indent=1).encode()


def check_lease(directory: str, holder: str) -> None:
    """Checks a lease before something is published, by whatever worker.

    Args:
        directory: The directory with the lease.
        holder: The holder that must have it; empty: whoever calls has no lease, since no other process works for it.

    Raises:
        RunError: Another command has taken it over, or has ended the run.
    """
    if not holder:
        return
    try:
        lease = read_lease(directory)
    except OSError as error:
        raise StorageError(f"{printable(directory)}/{LEASE} could not be read: {error.strerror or error}") from error
    if lease is None or lease.holder != holder:
        who = lease.describe() if lease else "it is gone"
        raise RunError(
            f"{printable(directory)}: another run has taken over what this one was making ({who}); nothing of this one was published"
        )


def check_elsewhere(directory: str, whose: str) -> None:
    """Fails if a command on another machine may be at work in a directory on a shared disk, although this machine has its lock.

    Raises:
        BusyError: The lease is of another machine, and has not run out.
    """
    lease = read_lease(directory)
    if lease is not None and lease.is_elsewhere:
        raise _busy(lease, whose)


def write_lease(directory: str, lease: Lease) -> None:
    """Writes the lease of a directory on a disk, which this process has locked."""
    write_file(f"{directory}/{LEASE}", _encode(lease))


@contextlib.contextmanager
def hold_on_disk(directory: str, lease: Lease) -> Iterator[None]:
    """Writes the lease of a directory on a disk, which this process has locked, and renews it until the end of the block.

    It is given back then, unless the job goes on, or the directory is no longer this command's.
    """
    write_lease(directory, lease)
    end = threading.Event()
    thread = threading.Thread(target=_keep_on_disk, args=(directory, lease, end), name="lease", daemon=True)
    thread.start()
    goes_on = False
    try:
        yield
    except StillRunningError:
        goes_on = True
        raise
    finally:
        end.set()
        thread.join()
        if not goes_on:
            _renew_on_disk(directory, lease, 0.0)


def _keep_on_disk(directory: str, lease: Lease, end: threading.Event) -> None:
    while not end.wait(RENEW_SECONDS) and _renew_on_disk(directory, lease, time.time()):
        pass


def _renew_on_disk(directory: str, lease: Lease, renewed: float) -> bool:
    """Renews a lease; returns whether it is still this command's. A disk that is full or away does not end the run."""
    with contextlib.suppress(OSError, StorageError):
        found = read_lease(directory)
        if found is None or found.holder != lease.holder:
            return False
        write_lease(directory, dataclasses.replace(lease, renewed=renewed))
    return True


class HeldLease:
    """A lease of this process in an object store, renewed until it is given back.

    Args:
        directory: The directory of the store where the lease lies.
        lease: The lease, as it was written.
        version: The version of the lease's object.
        lost: A function that is called in a thread of ours where another command has taken it.
    """

    def __init__(self, directory: str, lease: Lease, version: str, lost: Callable[[], None]) -> None:
        self._directory, self._lease, self._version, self._lost = directory, lease, version, lost
        self._lock, self._end = threading.Lock(), threading.Event()
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def detach(self) -> None:
        """The job goes on without this process."""
        self._end.set()
        self._write(is_detached=True)

    def is_ours(self) -> bool:
        """Whether no other command has taken it, as far as the store says."""
        try:
            found = read_lease(self._directory)
        except OSError:
            return False
        return found is not None and found.holder == self._lease.holder

    def give_back(self) -> None:
        """What lies there is nobody's from now on. Where the run has removed it, or another has it, nothing happens."""
        self._end.set()
        if not self._lease.is_detached:
            with contextlib.suppress(OSError):  # of a store that does not answer: it runs out by itself
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
            with contextlib.suppress(OSError):  # busy, or away for a while: the next time may do
                if self._write(renewed=time.time()) or self._end.is_set():
                    continue
                found = read_lease(self._directory)
                if found and found.holder != self._lease.holder:
                    self._lost()
                return  # or it is gone, with the end of the run


@contextlib.contextmanager
def hold_in_store(
    directory: str, lease: Lease, whose: str, is_at_work: Callable[[Lease], bool], lost: Callable[[], None]
) -> Iterator[HeldLease]:
    """Takes the lease of a directory of an object store, and keeps it until the end of the block.

    Args:
        directory: The URL of the directory, `gs://…` or `s3://…`.
        lease: The lease that is written.
        whose: The name of what the directory is for, as the user knows it.
        is_at_work: Whether a job that was submitted, and that nobody waits for, is still at work.
        lost: A function that is called in a thread of ours where another command takes it.

    Raises:
        BusyError: Another command has it.
    """
    held = HeldLease(directory, lease, _take(directory, lease, whose, is_at_work), lost)
    try:
        yield held
    finally:
        held.give_back()


def _take(directory: str, lease: Lease, whose: str, is_at_work: Callable[[Lease], bool]) -> str:
    path, store = f"{directory}/{LEASE}", files_at(directory)
    while True:
        try:
            data, version = store.read_versioned(path)
            found = _decode(data)
        except FileNotFoundError:
            found, version = None, None
        if found and (is_at_work(found) if found.is_detached else found.is_live):
            raise _busy(found, whose)
        if taken := store.write_if(path, _encode(lease), version):
            return taken


def wait_for_lease(directory: str, whose: str) -> None:
    """Waits until the lease of a directory of an object store has run out, if its command may have been killed.

    Raises:
        BusyError: It was renewed.
    """
    first = found = read_lease(directory)
    while found and found.is_live and not found.is_detached:
        if found != first:
            raise _busy(found, whose)
        if found is first:
            say(f"{whose}: waiting for {_busy_text(found)}")
        time.sleep(_LOOK_SECONDS)
        found = read_lease(directory)


def _busy(lease: Lease, whose: str) -> BusyError:
    return BusyError(f"{whose}: another run is writing to it: {_busy_text(lease)}")


def _busy_text(lease: Lease) -> str:
    if lease.is_detached or lease.can_look:
        return lease.describe()
    return f"{lease.describe()}; if it was killed, its lease runs out in {max(lease.seconds_left, 1):.0f} s"
