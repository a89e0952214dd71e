"""Draws pictures of stick figures and writes the positions of their heads and hands to a table."""

import csv
import pathlib
import random
import sys

from PIL import Image, ImageDraw

NUM = 200
POINTS = ("head", "left_hand", "right_hand")

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True)
draw_number = random.Random(0).uniform
with open(folder / "poses.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["file_name", *(f"{point}_{axis}" for point in POINTS for axis in "xy")])
    for index in range(NUM):
        head = draw_number(60, 100), draw_number(20, 40)
        left_hand, right_hand = (draw_number(100, 150), draw_number(20, 100)), (draw_number(10, 60), draw_number(20, 100))
        neck, image = (head[0], head[1] + 20), Image.new("RGB", (160, 120), "white")
        draw = ImageDraw.Draw(image)
        for end in (head, left_hand, right_hand, (head[0], 110)):
            draw.line((*neck, *end), "black", 3)
        draw.circle(head, 10, "black")
        image.save(folder / f"{index:03d}.png")
        points = [f"{value:.1f}" for point in (head, left_hand, right_hand) for value in point]
        writer.writerow([f"{index:03d}.png", *points[:4], *(("", "") if index % 10 == 0 else points[4:])])  # some hands are not labeled
