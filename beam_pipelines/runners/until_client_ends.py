"""Runs a program no longer than its client lives, which is the process that reads what it prints.

    python until_client_ends.py FOLDER PROGRAM ARGUMENT ...

However the client ends, by SIGKILL too, its end of that pipe is closed, and the other one, which is the standard output here, tells. The
program ends then, and the folder, which is the client's for its files, goes. It runs by its path, without recordmill's packages.
"""

import select
import shutil
import signal
import subprocess
import sys
import threading

_SECONDS_TO_END = 3  # Beam kills what does not end in 5
_SECONDS_TO_SEE = 0.3  # what has ended both may have ended the program first


def main(folder: str, *command: str) -> int:
    """Runs a program no longer than its client lives, and returns its exit code; removes the folder where the client has ended."""
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
    pipe.register(sys.stdout.fileno(), 0)  # whatever is asked for, an error is told of: nobody reads any more
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
