"""Trains a small torch model without TensorFlow. After an interruption, the next start reads exactly the remaining batches.

    pip install '.[loader]' torch
    recordmill prepare --input photographs --output out/flowers --splits train=0.9,validation=0.1
    python docs/examples/torch_loop.py out/flowers
"""

import argparse
import os
import pathlib

import torch

import tf_input


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a classifier with torch.")
    parser.add_argument("data", metavar="OUT", help="Directory that `recordmill prepare` wrote.")
    parser.add_argument("--image_size", type=int, default=32, metavar="N", help="(default: 32)")
    parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="(default: 32)")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="(default: 2)")
    parser.add_argument("--save_steps", type=int, default=10, metavar="N", help="steps between checkpoints (default: 10)")
    parser.add_argument("--checkpoint", default="torch_loop.pt", metavar="FILE", help="(default: torch_loop.pt)")
    arguments = parser.parse_args()
    torch.manual_seed(0)

    data = tf_input.open(arguments.data)
    options = {"batch_size": arguments.batch_size, "image_size": arguments.image_size}
    train = tf_input.TorchBatches(data.loader("train", augment=True, seed=0, **options))
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(256, len(data.class_names))
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    checkpoint, step = pathlib.Path(arguments.checkpoint), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train.load_state_dict(saved["train"])
        step = saved["step"]
        print(f"resumed at step {step}", flush=True)
    while step < arguments.epochs * len(train):
        for batch in train:  # The rest of an epoch.
            loss = torch.nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
            if step % arguments.save_steps == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "train": train.state_dict(), "step": step}
                torch.save(state, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)  # A killed program leaves the old checkpoint.


if __name__ == "__main__":
    main()
