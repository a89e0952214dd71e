"""Runs a program until its client ends. The client is the process that reads the program's standard output.

    python until_client_ends.py FOLDER PROGRAM ARGUMENT ...

When the client ends, even by SIGKILL, the system closes the client's end of the pipe. This script then ends the
program and deletes FOLDER, which contains the client's temporary files. The script does not import Recordmill.
"""

import select
import shutil
import signal
import subprocess
import sys
import threading

_SECONDS_TO_END = 3  # Beam kills processes that do not end within 5 seconds.
_SECONDS_TO_SEE = 0.3  # A signal to both processes may end the program slightly before the client.


def main(folder: str, *command: str) -> int:
    """Runs a program until its client ends, then deletes a folder. Returns the exit code of the program."""
    program = subprocess.Popen(command)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *unused: threading.Thread(target=_end, args=(program,)).start())
    is_alone = threading.Event()
    threading.Thread(target=_watch, args=(program, is_alone), daemon=True).start()
    code = program.wait()
    if is_alone.wait(_SECONDS_TO_SEE):
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _watch(program: subprocess.Popen, is_alone: threading.Event) -> None:
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)  # A pipe without a reader is always reported.
    pipe.poll()
    is_alone.set()
    _end(program)


def _end(program: subprocess.Popen) -> None:
    program.terminate()
    try:
        program.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        program.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
