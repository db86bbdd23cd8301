"""Unsigned integers in ORC's run length encoding, version 2 (ORC specification v1)."""

from __future__ import annotations

import numpy as np

__all__ = ["decode_unsigned"]

_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)


def decode_unsigned(content: bytes) -> np.ndarray:
    """Every value of a stream."""
    parts: list[np.ndarray] = []
    place = 0
    while place < len(content):
        kind = content[place] >> 6
        values, place = (_repeat, _direct, _patched, _delta)[kind](content, place)
        parts.append(values)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _bits(content: bytes, place: int, width: int, count: int) -> tuple[np.ndarray, int]:
    """`count` big-endian numbers of `width` bits, and the place after them."""
    size = (width * count + 7) // 8
    bits = np.unpackbits(np.frombuffer(content, np.uint8, size, place))[: width * count].reshape(count, width)
    values = np.zeros(count, dtype=np.uint64)
    for column in range(width):
        values = values << np.uint64(1) | bits[:, column]
    return values.astype(np.int64), place + size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
        shift += 7


def _length(content: bytes, place: int) -> int:
    return ((content[place] & 1) << 8 | content[place + 1]) + 1


def _repeat(content: bytes, place: int) -> tuple[np.ndarray, int]:
    width, count = (content[place] >> 3 & 7) + 1, (content[place] & 7) + 3
    value = int.from_bytes(content[place + 1 : place + 1 + width], "big")
    return np.full(count, value, dtype=np.int64), place + 1 + width


def _direct(content: bytes, place: int) -> tuple[np.ndarray, int]:
    width = _WIDTHS[content[place] >> 1 & 31]
    return _bits(content, place + 2, width, _length(content, place))


def _patched(content: bytes, place: int) -> tuple[np.ndarray, int]:
    width, count = _WIDTHS[content[place] >> 1 & 31], _length(content, place)
    base_size, patch_width = (content[place + 2] >> 5) + 1, _WIDTHS[content[place + 2] & 31]
    gap_width, patches = (content[place + 3] >> 5) + 1, content[place + 3] & 31
    place += 4
    base = int.from_bytes(content[place : place + base_size], "big")
    sign = 1 << (base_size * 8 - 1)
    if base & sign:
        base = -(base & ~sign)
    values, place = _bits(content, place + base_size, width, count)
    whole = next(each for each in _WIDTHS if each >= patch_width + gap_width)
    found, place = _bits(content, place, whole, patches)
    at = 0
    for each in found.tolist():
        at += each >> patch_width
        values[at] |= (each & ((1 << patch_width) - 1)) << width
    return values + base, place


def _delta(content: bytes, place: int) -> tuple[np.ndarray, int]:
    code, count = content[place] >> 1 & 31, _length(content, place)
    base, place = _varint(content, place + 2)
    stored, place = _varint(content, place)
    step = (stored >> 1) ^ -(stored & 1)
    steps = np.full(count, step, dtype=np.int64)
    steps[0] = base
    if code and count > 2:
        sizes, place = _bits(content, place, _WIDTHS[code], count - 2)
        steps[2:] = -sizes if step < 0 else sizes
    return np.cumsum(steps), place
