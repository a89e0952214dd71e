"""Tests that a lease allows only one command to write to an output, and that the lease of a killed command expires."""

import dataclasses
import os
import subprocess
import sys
import threading
import time
from typing import Iterator

import pytest

from beam_pipelines.errors import BusyError, RunError, StillRunningError, StorageError
from beam_pipelines.storage import lease as leases
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.lease import LEASE, Lease, check_lease, describe_process, held_lease, make_lease, read_lease, wait_for_lease
from beam_pipelines.storage.working_directory import WorkingDirectory, is_in_use
from foreign_leases import foreign_lease, write_lease
from object_stores import connected_to, shared_server

NEVER = lambda lease: False


@pytest.fixture(scope="module", params=["s3", "gs", "az"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    with connected_to(shared_server(request.param)) as server:
        yield server.make_bucket()


@pytest.fixture
def directory(store, request) -> str:
    """Returns a directory in an object store."""
    return f"{store}/{request.node.name}.incomplete"


@pytest.fixture(params=["disk", "store"])
def any_directory(request, tmp_path) -> Iterator[str]:
    """Returns a directory on a disk or in an object store."""
    if request.param == "disk":
        yield str(tmp_path)
    else:
        with connected_to(shared_server("s3")) as server:
            yield f"{server.make_bucket()}/out.incomplete"


def hold(directory: str, lease: Lease, is_at_work=NEVER, lost=lambda: None):
    return held_lease(directory, lease, "--output=out", is_at_work, lost)


def hold_directory(directory: str, lease: Lease | None = None, **options):
    return WorkingDirectory(directory, lease or make_lease("run", "mine"), "--output=out", **options).hold()


def test_live_lease_excludes_other_commands(directory):
    with hold(directory, make_lease("run", "mine")):
        assert read_lease(directory).holder == "mine"
        with pytest.raises(BusyError, match=rf"--output=out: another run .* process {os.getpid()} on "), hold(directory, make_lease("2", "2")):
            pass
        check_lease(directory, "mine")
    with hold(directory, make_lease("run 2", "its")):  # The lease was released.
        assert read_lease(directory).holder == "its"


def test_only_one_of_concurrent_commands_gets_the_lease(directory):
    holders, rejected, all_tried = [], [], threading.Barrier(6)

    def take(number: int) -> None:
        try:
            with hold(directory, make_lease("run", str(number))):
                holders.append(number)
                all_tried.wait()
        except BusyError:
            rejected.append(number)
            all_tried.wait()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(holders) == 1 and len(rejected) == 5


def test_lease_expires_if_not_renewed(directory):
    write_lease(directory, foreign_lease("its"))
    with pytest.raises(BusyError, match=r" lease .* (8\d|90) s"), hold(directory, make_lease("2", "mine")):
        pass
    write_lease(directory, foreign_lease("its", age=leases.LIFE_SECONDS + 1))
    with hold(directory, make_lease("2", "mine")):
        with pytest.raises(RunError, match="another run .*taken over"):
            check_lease(directory, "its")


def test_lease_of_ended_local_process_is_not_live(directory):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    described = describe_process(process.pid)
    assert described
    killed = dataclasses.replace(make_lease("run", "its"), process_id=process.pid, process=described)
    assert killed.is_live
    process.communicate(b"\n")
    write_lease(directory, killed)
    with hold(directory, make_lease("2", "mine")):
        pass
    reused = dataclasses.replace(make_lease("run", "its"), process="another one of the same number")
    assert not reused.is_live


SAME_HOST_NAME = {"another machine": {"boot": "another"}, "another container": {"namespace": "pid:[1]"}}


@pytest.mark.parametrize("case", SAME_HOST_NAME)
def test_lease_of_process_in_other_namespace_is_live(case):
    """A process ID in a lease is meaningless on other machines and in other containers."""
    lease = dataclasses.replace(make_lease("run", "its"), process="not here", **SAME_HOST_NAME[case])
    assert lease.is_live and not dataclasses.replace(lease, renewed=time.time() - leases.LIFE_SECONDS - 1).is_live
    assert lease.is_elsewhere == (case == "another machine"), "all containers of a machine see a lock on a disk"


def test_lease_of_another_machine_locks_directory_on_disk(tmp_path):
    """The lease also protects directories on disk, because file locks on NFS may apply only to one machine."""
    directory = f"{tmp_path}/out.incomplete"
    with pytest.raises(ZeroDivisionError), hold_directory(directory, stays=lambda error: True):
        write_lease(directory, foreign_lease())
        1 / 0
    assert is_in_use(directory)
    with pytest.raises(BusyError, match="--output=out: .* process .* on elsewhere.* lease "), hold_directory(directory):
        pytest.fail("another machine holds the lease")
    write_lease(directory, foreign_lease(age=leases.LIFE_SECONDS + 1))
    assert not is_in_use(directory)
    with hold_directory(directory):
        assert read_lease(directory).holder == "mine"
    assert not os.path.exists(directory)


@pytest.mark.parametrize("error", [StillRunningError("still running"), RunError("ended")])
def test_lease_is_detached_only_if_the_job_continues(any_directory, error):
    with pytest.raises(RunError), hold(any_directory, make_lease("run", "mine", "FlinkRunner", "made")):
        raise error
    lease = read_lease(any_directory)
    assert lease.is_detached == lease.is_live == isinstance(error, StillRunningError)
    assert is_in_use(any_directory) == (lease.is_live and is_remote(any_directory)), "on a disk, the next command cancels the job"


def test_checking_for_active_run_makes_no_run_fail(tmp_path):
    directory, end = f"{tmp_path}/out.incomplete", threading.Event()
    os.mkdir(directory)

    def look() -> None:
        while not end.is_set():
            is_in_use(directory)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            with hold_directory(directory):
                pass
            os.mkdir(directory)
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_detached_lease_is_live_until_job_has_ended(directory):
    with hold(directory, dataclasses.replace(make_lease("run", "its", "DataflowRunner", "recordmill-made"), host="elsewhere")) as held:
        held.detach()
    actual = read_lease(directory)
    assert actual.is_detached and actual.is_live
    asked = []
    with pytest.raises(BusyError, match="job recordmill-made on DataflowRunner"):
        with hold(directory, make_lease("2", "mine"), lambda lease: bool(asked.append(lease.job)) or True):
            pass
    with hold(directory, make_lease("2", "mine"), lambda lease: bool(asked.append(lease.job))):
        pass
    assert asked == ["recordmill-made"] * 2


def test_lease_is_renewed_and_its_loss_is_reported(any_directory, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    lost = threading.Event()
    with hold(any_directory, make_lease("run", "mine"), lost=lost.set):
        first = read_lease(any_directory).renewed
        while read_lease(any_directory).renewed == first:
            time.sleep(0.02)
        assert not lost.is_set()
        monkeypatch.setattr(leases, "RENEW_SECONDS", 0.5)
        time.sleep(0.2)  # On a disk, a renewal is not atomic. The lease is therefore replaced between two renewals.
        write_lease(any_directory, foreign_lease())  # The lease has expired, for example because the machine was suspended.
        assert lost.wait(30)
    assert read_lease(any_directory).holder == "its", "a lost lease must not be released"


@pytest.mark.slow
def test_wait_for_lease_waits_until_it_expires(directory, monkeypatch, capsys):
    monkeypatch.setattr(leases, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(leases, "LIFE_SECONDS", 1.0)
    wait_for_lease(directory, "--output=out")
    assert capsys.readouterr().err == ""
    write_lease(directory, foreign_lease("its"))
    wait_for_lease(directory, "--output=out")
    assert not read_lease(directory).is_live
    assert capsys.readouterr().err.startswith("recordmill: --output=out: waiting for process ")
    write_lease(directory, foreign_lease("its"))
    timer = threading.Timer(0.3, write_lease, (directory, foreign_lease("its", age=-60)))
    timer.start()
    with pytest.raises(BusyError, match="another run"):
        wait_for_lease(directory, "--output=out")


def test_incomplete_or_missing_lease_has_no_holder(directory, tmp_path):
    for data in (b"", b"{", b"[1]", b'{"run_id": 1}'):
        (tmp_path / LEASE).write_bytes(data)
        assert read_lease(str(tmp_path)) is None, data
        with pytest.raises(RunError, match="missing"):
            check_lease(str(tmp_path), "mine")
    check_lease(str(tmp_path / "nowhere"), "")  # A run without a lease passes this check.
    with pytest.raises(RunError, match="missing"):
        check_lease(str(tmp_path / "nowhere"), "mine")
    (tmp_path / LEASE).unlink()
    (tmp_path / LEASE).mkdir()
    with pytest.raises(StorageError, match="LEASE could not be read: Is a directory"):
        check_lease(str(tmp_path), "mine")
