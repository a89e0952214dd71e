"""Checks that training works on this machine's GPU, and prints the speed with mixed precision and XLA.

    gpu_check.py --data out/flowers --model resnet50 --batch_size 256

Each row of the printed table is a separate run of train.py. Speeds are in images per second. The check fails if a loss
is not finite, or if neither `mixed_float16` nor `mixed_bfloat16` is faster than float32.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

_ROWS = (
    ("float32", ()),
    ("float32, XLA", ("--jit_compile",)),
    ("float16", ("--mixed_precision", "float16")),
    ("float16, XLA", ("--mixed_precision", "float16", "--jit_compile")),
    ("bfloat16", ("--mixed_precision", "bfloat16")),
    ("bfloat16, XLA", ("--mixed_precision", "bfloat16", "--jit_compile")),
)


def main() -> int:
    """Returns the exit code: 0 for success, 1 if a run failed or mixed precision is not faster, 2 if no GPU exists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="Dataset to read.")
    parser.add_argument("--model", default="resnet50", help="Network to train. Default: resnet50.")
    parser.add_argument("--batch_size", type=int, default=256, metavar="N", help="Number of images per batch. Default: 256.")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="Number of steps in each of the two epochs of a run. Default: 100.")
    arguments = parser.parse_args()

    import tensorflow as tf

    if not (gpus := tf.config.list_physical_devices("GPU")):
        print("gpu_check: TensorFlow found no GPU", file=sys.stderr)
        return 2
    print(f"{tf.config.experimental.get_device_details(gpus[0]).get('device_name')}, TensorFlow {tf.__version__}", flush=True)
    speeds = {}
    for name, flags in _ROWS:
        results = run(arguments, flags)
        if results is None:
            print(f"gpu_check: {name} failed", file=sys.stderr)
            return 1
        last = results["history"][-1]
        speeds[name] = last["images_per_second"]
        print(f"{name:16} {speeds[name]:10,.0f} images/s   loss {last['loss']:.3f}", flush=True)
    quickest = max(speed for name, speed in speeds.items() if "float32" not in name)
    gain = quickest / max(speed for name, speed in speeds.items() if "float32" in name)
    print(f"mixed precision: {gain:.2f} times the speed of the fastest float32 run")
    return 0 if gain > 1 else 1


def run(arguments: argparse.Namespace, flags: tuple[str, ...]) -> dict | None:
    """Returns the results of a short training run, or None if it failed. train.py itself prints the error."""
    program = pathlib.Path(__file__).with_name("train.py")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(program), "--data", arguments.data, "--output", folder, "--model", arguments.model]
        command += ["--batch_size", str(arguments.batch_size), "--limit_steps", str(arguments.steps), "--epochs", "2"]
        command += ["--eval_split", "none", *flags]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            return None
        return json.loads(pathlib.Path(folder, "results.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
