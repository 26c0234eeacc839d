"""Ultralytics: YOLO trained on generated images, with validation after each epoch."""
# By hand: 19 in each step: three losses formatted, three strides read as numbers, six `type_as`, the image
# size and strides made, a list as index, `unique`, the largest count read as a size, two `nonzero`.

import tempfile
from pathlib import Path

import _tiny
import numpy as np
from PIL import Image
from ultralytics import YOLO

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    noise = np.random.default_rng(0)
    for part, count in (("train", 26), ("val", 4)):
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for n in range(count):
            pixels = noise.integers(0, 255, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / part / f"{n}.jpg")
            boxes = "\n".join(f"{n % 2} {x} 0.5 0.3 0.4" for x in (0.3, 0.6))
            (folder / "labels" / part / f"{n}.txt").write_text(boxes)
    (folder / "data.yaml").write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n"
    )
    model = YOLO("yolo11n.yaml")
    model.train(
        data=str(folder / "data.yaml"),
        epochs=1,
        imgsz=64,
        batch=2,
        nbs=2,
        workers=0,
        device="cpu" if _tiny.device() == "cpu" else 0,
        project=str(folder / "runs"),
        amp=False,
        plots=False,
        pretrained=False,
    )
