"""Pictures in folders, one folder per class."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from common.data.broken import tell_of_broken
from common.errors import DataError
from common.events import Emit

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
"""What a picture may be, whatever its name says: Pillow knows formats that start other programs."""
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}


def list_pictures(folder: Path) -> list[tuple[str, Path]]:
    """Class and path of every picture, in the order of their names."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a directory; expected one folder per class in it")
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [
        (folder_of_class.name, path)
        for folder_of_class in classes
        for path in sorted(folder_of_class.rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise DataError(f"{folder} has no pictures; expected CLASS/picture.png and the like in it")
    return found


def _read(path: Path) -> Image.Image:
    """A picture, read whole first: from a file, Pillow takes memory for any size that a part announces."""
    return Image.open(io.BytesIO(path.read_bytes()), formats=FORMATS)


def readable(pictures: list[tuple[str, Path]], emit: Emit) -> list[tuple[str, Path]]:
    """The pictures that can be decoded; tells of the others in one event."""
    good, bad = [], []
    for name, path in pictures:
        try:
            with _read(path) as picture:
                picture.load()
            good.append((name, path))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            bad.append(path)
    tell_of_broken([str(path) for path in bad], len(pictures), "pictures that cannot be read", emit)
    return good


def decode(paths: list[Path], shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Pictures as one array (n, channels, height, width), resized and converted where they differ."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise DataError(f"pictures have 1 or 3 channels, the run wants {channels}")
    images = np.empty((len(paths), channels, height, width), np.uint8)
    for image, path in zip(images, paths, strict=True):
        with _read(path) as picture:
            converted = picture.convert("L" if channels == 1 else "RGB")
            if converted.size != (width, height):
                converted = converted.resize((width, height), Image.Resampling.BILINEAR)
            image[:] = np.asarray(converted).reshape(height, width, channels).transpose(2, 0, 1)
    return images
