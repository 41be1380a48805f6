"""Which codec a tensor has: by the settings of a run, or by what a peer announces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import ConfigError, Fault, WireError
from common.installed.table import Table
from common.wire.codecs.base import DERIVED, RAW, Codec, Derived
from common.wire.codecs.largest import TopK, top_share
from common.wire.codecs.shorter import MAX_HALF, Brain, Half, Int8

CODED = ("float32", "float64")
"""Other tensors travel as they are."""
BUILT_IN: tuple[type[Codec], ...] = (Codec, Half, Brain, Int8, TopK, Derived)
"""A new one is a class and an entry here, or in a package of its own."""
FOR_ALL = tuple(name for kind in BUILT_IN for name in kind.setting_names)
"""Names a setting may have; updates also have topk:F, and all those of installed packages."""
PRIVATE = range(64, 128)
"""Numbers in manifests that codecs of other packages share out among themselves; ours are below."""


def _checked(name: str, found: object) -> type[Codec]:
    """A codec of another package: its settings are NAME, or NAME:SOMETHING that it reads itself."""
    if not (isinstance(found, type) and issubclass(found, Codec)):
        raise ValueError(f"expected a class derived from common.wire.codecs.Codec, got {found!r}")
    if found.number not in PRIVATE or found.name != name:
        raise ValueError(
            f"expected name {name!r} and a number from {PRIVATE[0]} to {PRIVATE[-1]}, "
            f"got {found.name!r} and {found.number}"
        )
    for other in CODECS.ready.values():
        if other.number == found.number:
            raise ValueError(f"its number {found.number} is that of codec {other.name} too")
    return found


CODECS: Table[type[Codec]] = Table("fedpvr.codecs", "codec", {kind.name: kind for kind in BUILT_IN}, _checked)


def _of_package(setting: str, known: Mapping[str, type[Codec]]) -> type[Codec] | None:
    """The codec of another package that a setting names; None if it is built in, or not known."""
    name = setting.partition(":")[0]
    kind = known[name] if name in known and name not in CODECS.built_in else None
    return kind if kind is not None and kind.named(setting, 1) is not None else None


@dataclass(frozen=True)
class Codecs:
    """Which codec x, the updates and the control variates of a run have, by name."""

    down: str = "fp32"
    up: str = "fp32"
    control: str = "fp32"

    @classmethod
    def parse(cls, settings: tuple[str, ...]) -> Codecs:
        """From settings such as int8 (of updates), down=fp16 or control=int8."""
        given: dict[str, str] = {}
        for setting in (part for text in settings for part in text.split(",")):
            key, _, name = setting.strip().rpartition("=")
            key = key or "up"
            if key not in ("down", "up", "control"):
                raise ConfigError(f"--codec {setting}: codecs are for down, up or control, got {key!r}")
            if key in given:
                raise ConfigError(f"--codec gives {key} twice: {given[key]} and {name}; give it once")
            if not (name in FOR_ALL or (key == "up" and top_share(name)) or _of_package(name, CODECS)):
                choices = ", ".join([*FOR_ALL, *CODECS.installed])
                choices += " or topk:F with F from 0 to 1" if key == "up" else ""
                raise ConfigError(f"--codec {setting}: {key} can be {choices}, got {name!r}")
            given[key] = name
        return cls(**given)


def is_codec(name: str) -> bool:
    """Whether a peer may say that updates have the codec of this name."""
    return name in FOR_ALL or top_share(name) is not None or _of_package(name, CODECS.ready) is not None


def codec_for(name: str, dtype: str, num_elements: int) -> Codec:
    """The codec of this name for a tensor; raw where it does not apply or would save nothing."""
    if dtype not in CODED or not num_elements:
        return RAW
    candidates = (kind.named(name, num_elements) for kind in CODECS.ready.values())
    codec = next((found for found in candidates if found is not None), RAW)
    itemsize = 8 if dtype == "float64" else 4
    saves = codec.num_bytes(num_elements, itemsize) < num_elements * itemsize
    return codec if saves else RAW


def coding_error(codec: Codec, largest: float) -> float:
    """The most that coding may change an element of a tensor whose elements are at most this large."""
    errors = {
        # Eleven bits, fewer for the smallest numbers; what is too large is cut off.
        "fp16": max(2.0**-11 * largest, 2.0**-25, largest - MAX_HALF),
        "bf16": 2.0**-8 * largest,
        # One step of the scale, because rounding is stochastic.
        "int8": largest / 127,
        "topk": largest,
    }
    return errors.get(codec.name, codec.max_error(largest))


def announced_codec(number: int, dtype: str, num_elements: int, block: int, kept: int) -> Codec:
    """The codec that a peer announces for a tensor, once its numbers are known to make sense."""
    if number in (RAW.number, DERIVED.number):
        return RAW if number == RAW.number else DERIVED
    if dtype not in CODED or not num_elements:
        raise WireError(Fault.WRONG_DTYPE, f"{dtype} has no codec but RAW, got number {number}")
    kind = next((kind for kind in CODECS.ready.values() if kind.number == number), None)
    if kind is None and number in PRIVATE:
        raise WireError.broken_contract(
            f"codec number {number} is of another package, which is not installed or not allowed here"
        )
    codec = kind.announced(num_elements, block, kept) if kind is not None else None
    if codec is None:
        raise WireError.broken_contract(
            f"codec number {number} with block {block} and {kept} kept makes no sense"
        )
    return codec
