"""Makes programs that import this module fork their worker processes instead of starting new interpreters.

Forking saves time in programs that `forked_python` runs, because they have already imported the workers' modules.
"""

import os
import signal
import subprocess
import types

from beam_pipelines.parallel import worker_process
from beam_pipelines.shards import shard_writer  # noqa: F401
from beam_pipelines.sources.listing import part_listing  # noqa: F401


class Forked:
    """Replaces `subprocess.Popen` for `WorkerProcess`.
    Args:
        command: Command line of a worker process. Only the names of modules in it are used.
    Attributes:
        pid: Process ID.
        stdin, stdout: Pipes.
    """

    def __init__(self, command: list[str], **unused: object) -> None:
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.dup2(read_in, 0)
                os.dup2(write_out, 1)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # includes the pipes of other workers
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                worker_process.run_child(command[5:])
            finally:
                os._exit(0)
        os.close(read_in)
        os.close(write_out)
        self.stdin, self.stdout = os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb")
        self._code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, or None if the process is still running."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Waits for the process to exit and returns its exit code."""
        return self._wait(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            try:
                process_id, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # Another thread has just waited. `subprocess.Popen` also returns 0 in this case.
                process_id, status = self.pid, 0
            self._code = os.waitstatus_to_exitcode(status) if process_id else None
        return self._code


worker_process.subprocess = types.SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE)
