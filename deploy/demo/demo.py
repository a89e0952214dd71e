"""`make demo`: the main job on real images, and what a global shuffle does for training.

A folder of handwritten digits is written, `recordmill prepare` makes a data set of it, and a small network is trained
twice on the same examples: as they lie in the folder, and as they were prepared. Nothing is downloaded.

    digits     the folder of images
    compare    the two trainings, and how mixed the labels were that they saw
    picture    demo-out/shuffle.png
"""

import argparse
import contextlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Iterator

SPLITS = "train=0.8,validation=0.2"


def main() -> int:
    """Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = parse_arguments()
    try:
        return run(arguments.output, arguments.steps, arguments.seed)
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prepares a folder of real images, and shows what that does for training.")
    add = parser.add_argument
    add("--output", type=pathlib.Path, default="demo-out", metavar="DIR", help="of all it makes (default: demo-out)")
    add("--steps", type=int, metavar="N", help="of each training (default: three passes over the data)")
    add("--seed", type=int, default=0, metavar="N", help="of the shuffle and of the trainings (default: 0)")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        parser.error(f"--steps={arguments.steps}: expected an integer above 0")
    return arguments


def run(output: pathlib.Path, num_steps: int | None, seed: int) -> int:
    import digits  # late, like the others: what takes seconds to import must not delay --help

    folder, prepared = output / "digits", output / "prepared"
    try:
        num_images = digits.write_folder(folder)
    except OSError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    print(f"{num_images:,} handwritten digits, scans that scikit-learn ships, are now PNG files in {folder}/0 to /9\n")

    command = [*recordmill(), "prepare", "--input", str(folder), "--output", str(prepared)]
    command += ["--splits", SPLITS, "--seed", str(seed), "--overwrite"]
    print(f"$ {shlex.join(command)}\n", flush=True)
    if code := call(command):
        return code

    print("\nloading TensorFlow ...", flush=True)
    with quiet_tensorflow():
        import compare
    comparison = compare.compare(prepared, output / "class-ordered.tfrecord", num_steps, seed)
    print("", *compare.describe(comparison), sep="\n", flush=True)

    import picture

    picture.draw(comparison, output / "shuffle.png")
    print(f"\npicture: {output / 'shuffle.png'}")
    print(f"next:    {' '.join(recordmill())} prepare --input A_FOLDER_OF_CLASS_FOLDERS --output out/mine")
    return 0


def recordmill() -> list[str]:
    """The command as a user can type it here, in the environment that this runs in."""
    script = shutil.which("recordmill", path=os.path.dirname(sys.executable))
    program = [script] if script else [sys.executable, "-m", "beam_pipelines"]
    if pathlib.Path(program[0]).is_relative_to(pathlib.Path.cwd()):
        program[0] = os.path.relpath(program[0])
    return program


def call(command: list[str]) -> int:
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C reaches it too, and it removes what it had begun
            raise


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """TensorFlow's import writes about processors and GPUs to standard error, some of it whatever the log level."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # a GPU is no faster on this, and its sums differ
    standard_error = os.dup(2)
    with tempfile.TemporaryFile() as messages:
        os.dup2(messages.fileno(), 2)
        try:
            yield
        except ImportError:
            messages.seek(0)
            os.write(standard_error, messages.read())
            raise
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


if __name__ == "__main__":
    sys.exit(main())
