"""Tests that the example programs for torch and JAX resume exactly after they are killed in the middle of an epoch."""

import importlib.util
import pathlib
import re
import signal
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "docs/examples"
PACKAGES = {"torch_loop.py": ["torch"], "jax_loop.py": ["jax", "optax", "orbax"]}
SETTINGS = ["--batch_size=8", "--image_size=12", "--save_steps=4"]


def run(command: list[object], folder: pathlib.Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=600).stdout


def losses_of(output: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"^step (\d+): loss (.+)$", output, re.MULTILINE)}


@pytest.mark.slow(30)
@pytest.mark.parametrize("name", PACKAGES)
def test_killed_program_continues_with_the_same_losses(mixed, tmp_path, name):
    if missing := [package for package in PACKAGES[name] if importlib.util.find_spec(package) is None]:
        pytest.skip(f"needs {', '.join(missing)}, which `make test` does not install")
    command = [sys.executable, EXAMPLES / name, mixed.directory, *SETTINGS]
    folder, other = tmp_path / "killed", tmp_path / "not killed"
    folder.mkdir()
    other.mkdir()
    expected = losses_of(run(command, other))
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as killed:
        for line in killed.stdout:
            if line.startswith("step 14:"):  # In the second epoch, after the checkpoint of step 12.
                killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    resumed = run(command, folder)
    first = int(re.match(r"resumed at step (\d+)", resumed)[1])
    assert first in (8, 12), "Orbax saves in the background"
    assert losses_of(resumed) == {step: loss for step, loss in expected.items() if step > first}
