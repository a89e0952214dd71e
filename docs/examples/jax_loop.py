"""Trains a small JAX model and saves it with Orbax. After an interruption, the next start reads exactly the remaining batches.

    pip install '.[loader]' jax optax orbax-checkpoint
    recordmill prepare --input photographs --output out/flowers --splits train=0.9,validation=0.1
    python docs/examples/jax_loop.py out/flowers
"""

import argparse
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

import tf_input

_OPTIMIZER = optax.adam(1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a classifier with JAX.")
    parser.add_argument("data", metavar="OUT", help="Directory that `recordmill prepare` wrote.")
    parser.add_argument("--image_size", type=int, default=32, metavar="N", help="(default: 32)")
    parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="(default: 32)")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="(default: 2)")
    parser.add_argument("--save_steps", type=int, default=10, metavar="N", help="steps between checkpoints (default: 10)")
    parser.add_argument("--checkpoints", default="jax_loop", metavar="FOLDER", help="(default: jax_loop)")
    arguments = parser.parse_args()

    data = tf_input.open(arguments.data)
    options = {"batch_size": arguments.batch_size, "image_size": arguments.image_size, "drop_remainder": True}
    train = data.loader("train", augment=True, seed=0, **options)
    parameters = initialize(jax.random.key(0), len(data.class_names))
    variables = {"parameters": parameters, "optimizer": _OPTIMIZER.init(parameters)}
    step = 0
    with ocp.CheckpointManager(pathlib.Path(arguments.checkpoints).absolute()) as manager:
        if (latest := manager.latest_step()) is not None:
            parts = {"variables": ocp.args.StandardRestore(variables), "train": ocp.args.JsonRestore()}
            saved = manager.restore(latest, args=ocp.args.Composite(**parts))
            variables, step = saved["variables"], latest
            train.load_state_dict(saved["train"])
            print(f"resumed at step {step}", flush=True)
        while step < arguments.epochs * len(train):
            for batch in train:  # The rest of an epoch.
                variables, loss = train_step(variables, batch["image"], batch["label"])
                step += 1
                print(f"step {step}: loss {loss:.6f}", flush=True)
                if step % arguments.save_steps == 0:
                    parts = {"variables": ocp.args.StandardSave(variables), "train": ocp.args.JsonSave(train.state_dict())}
                    manager.save(step, args=ocp.args.Composite(**parts))


def initialize(key: jax.Array, num_classes: int) -> dict[str, jax.Array]:
    first, second = jax.random.split(key)
    return {"kernel": jax.random.normal(first, (3, 3, 3, 16)) * 0.2, "dense": jax.random.normal(second, (16, num_classes)) * 0.2}


@jax.jit
def train_step(variables: dict[str, Any], images: jax.Array, labels: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """Returns the variables after one step, and the loss."""

    def loss_of(parameters: dict[str, jax.Array]) -> jax.Array:
        pixels = images.astype(jnp.float32) / 255
        features = jax.lax.conv_general_dilated(pixels, parameters["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        logits = jax.nn.relu(features).mean((1, 2)) @ parameters["dense"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(variables["parameters"])
    updates, optimizer = _OPTIMIZER.update(gradients, variables["optimizer"])
    return {"parameters": optax.apply_updates(variables["parameters"], updates), "optimizer": optimizer}, loss


if __name__ == "__main__":
    main()
