"""Implements `make demo`: prepares a dataset from real images, and shows how a global shuffle improves training.

The demo writes a folder of handwritten digits and runs `recordmill prepare`. The demo then trains a small network twice
on the same examples: first in the order of the folder, then in the prepared order. Nothing is downloaded.

    digits     writes the folder of images
    compare    trains the network twice, and measures how well the labels are mixed
    picture    draws demo-out/shuffle.png
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
    """Returns the exit code: 0 for success, 1 for failure, 2 for wrong usage, 130 for an interruption."""
    arguments = parse_arguments()
    try:
        return run(arguments.output, arguments.steps, arguments.seed)
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prepares a folder of real images, and shows the effect on training.")
    add = parser.add_argument
    add("--output", type=pathlib.Path, default="demo-out", metavar="DIR", help="Folder for all results. Default: demo-out.")
    add("--steps", type=int, metavar="N", help="Number of steps of each training. Default: three epochs.")
    add("--seed", type=int, default=0, metavar="N", help="Seed of the shuffle and of the trainings. Default: 0.")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        parser.error(f"--steps={arguments.steps} is not positive. Give an integer above 0.")
    return arguments


def run(output: pathlib.Path, num_steps: int | None, seed: int) -> int:
    import digits  # Imported late, because slow imports would delay --help.

    folder, prepared = output / "digits", output / "prepared"
    try:
        num_images = digits.write_folder(folder)
    except OSError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    print(f"Wrote {num_images:,} handwritten digits from scikit-learn as PNG files to {folder}/0 to {folder}/9\n")

    command = [*recordmill(), "prepare", "--input", str(folder), "--output", str(prepared)]
    command += ["--splits", SPLITS, "--seed", str(seed), "--overwrite"]
    print(f"$ {shlex.join(command)}\n", flush=True)
    if code := call(command):
        return code

    print("\nLoading TensorFlow ...", flush=True)
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
    """Returns the `recordmill` command that a user can type in this environment."""
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
            process.wait()  # The child process receives Ctrl-C too, and cleans up.
            raise


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Suppresses the messages that TensorFlow prints on standard error while it is imported."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # A GPU is not faster for this model, and rounds differently.
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
