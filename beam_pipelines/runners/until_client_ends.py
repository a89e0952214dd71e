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


def main(folder: str, *command: str) -> int:
    program = subprocess.Popen(command)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *unused: threading.Thread(target=_end, args=(program,)).start())
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)  # whatever is asked for, an error is told of: nobody reads any more
    threading.Thread(target=lambda: pipe.poll() and _end(program), daemon=True).start()
    code = program.wait()
    if pipe.poll(0):
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _end(program: subprocess.Popen) -> None:
    program.terminate()
    try:
        program.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        program.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
