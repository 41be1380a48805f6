"""Which codec a tensor has: by the settings of a run, or by what a peer announces."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigError, Fault, WireError
from common.wire.codecs import CODECS, DERIVED, MAX_HALF, RAW, Codec, top_share

CODED = ("float32", "float64")
"""Other tensors travel as they are."""
FOR_ALL = tuple(name for kind in CODECS for name in kind.setting_names)
"""Names a setting may have; updates also have topk:F."""
_BY_NUMBER = {kind.number: kind for kind in CODECS}


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
            if name not in FOR_ALL and not (key == "up" and top_share(name) is not None):
                choices = ", ".join(FOR_ALL) + (" or topk:F with F from 0 to 1" if key == "up" else "")
                raise ConfigError(f"--codec {setting}: {key} can be {choices}, got {name!r}")
            given[key] = name
        return cls(**given)


def is_codec(name: str) -> bool:
    """Whether there is a codec of this name for updates."""
    return name in FOR_ALL or top_share(name) is not None


def codec_for(name: str, dtype: str, num_elements: int) -> Codec:
    """The codec of this name for a tensor; raw where it does not apply or would save nothing."""
    if dtype not in CODED or not num_elements:
        return RAW
    candidates = (kind.named(name, num_elements) for kind in CODECS)
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
    return errors[codec.name] if codec.lossy else 0.0


def announced_codec(number: int, dtype: str, num_elements: int, block: int, kept: int) -> Codec:
    """The codec that a peer announces for a tensor, once its numbers are known to make sense."""
    if number in (RAW.number, DERIVED.number):
        return RAW if number == RAW.number else DERIVED
    if dtype not in CODED or not num_elements:
        raise WireError(Fault.WRONG_DTYPE, f"{dtype} has no codec but RAW, got number {number}")
    kind = _BY_NUMBER.get(number)
    codec = kind.announced(num_elements, block, kept) if kind is not None else None
    if codec is None:
        raise WireError.broken_contract(
            f"codec number {number} with block {block} and {kept} kept makes no sense"
        )
    return codec
