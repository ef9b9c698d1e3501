# SPDX-License-Identifier: Apache-2.0
"""Values of the adapters' options: of their own types, or as texts, which are read as tenutod reads them. What cannot be meant raises a ValueError that has
the option's name."""
from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

SIZES = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
COUNTS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
MOST_SIZE, MOST_COUNT = 2**64 - 1, 2**32 - 1
NEVER = MOST_COUNT  # of a time in ms
LEAST_BARE_SIZE = 4096  # a smaller one without a unit is a mistake: the unit was forgotten

_NUMBER = re.compile(r'([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)', re.ASCII)


def _wrong(value: Any, name: str, wanted: str) -> ValueError:
    return ValueError(f'tenuto: {name}: {value!r}: {wanted}')


def _number(value: Any, name: str, units: dict[str, int], most: int, wanted: str) -> int:
    """A whole number from 0 to most."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _wrong(value, name, wanted)
    number: int | Fraction = value if isinstance(value, int) else -1
    if isinstance(value, str):
        read = _NUMBER.fullmatch(value)
        if read and read[2] in units:
            number = Fraction(read[1]) * units[read[2]]
    if number < 0 or number != int(number):
        raise _wrong(value, name, wanted)
    if number > most:
        raise _wrong(value, name, f'is out of range (0 to {most})')
    return int(number)


def size_of(value: Any, name: str) -> int:
    """Bytes: a number, or a text with a unit: GB are 10^9 bytes, GiB 2^30."""
    size = _number(value, name, SIZES, MOST_SIZE, 'write a size such as 64GiB or 500MB')
    if isinstance(value, str) and 0 < size < LEAST_BARE_SIZE and value.isdigit():
        raise _wrong(value, name, f'these are {size} bytes: give a unit, as in "{size}GiB", or "{size}B" if that is meant')
    return size


def count_of(value: Any, name: str, least: int = 0) -> int:
    """A number, or a text such as "8k"."""
    count = _number(value, name, COUNTS, MOST_COUNT, 'write a whole number')
    if count < least:
        raise _wrong(value, name, f'write a number from {least} on')
    return count


def ms_of(value: Any, name: str) -> int:
    """Milliseconds, or "never"."""
    return NEVER if value == 'never' else _number(value, name, {'': 1}, MOST_COUNT, 'write a number of ms, such as 1000, or never')


def seconds_of(value: Any, name: str) -> float:
    """Seconds, also parts of them."""
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise _wrong(value, name, 'write a number of seconds, such as 10 or 0.5')
    return seconds


def flag_of(value: Any, name: str) -> bool:
    """true or false, also as texts."""
    if isinstance(value, bool):
        return value
    if value not in ('true', 'false'):
        raise _wrong(value, name, 'write true or false')
    return bool(value == 'true')


def text_of(value: Any, name: str) -> str:
    """A text; a number is taken for its digits."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _wrong(value, name, 'write a text')
    return str(value)
