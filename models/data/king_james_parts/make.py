#!/usr/bin/env python3
"""Makes the passages of this folder, with the part of the Bible that each comes from, of the text that ships.

    python3 make.py

needs NumPy and `tokenizers`, and writes the files beside it; the same ones every time. Passages to test with are of chapters
that are not in `train.txt.gz`.
"""

import gzip
import io
import pathlib
import random

import numpy
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
TEXT = HERE.parent / "king_james"
# Chapters of the books in order, in four parts: Genesis to Esther, Job to the Song of Solomon, the prophets, the New Testament.
PARTS = [
    [50, 40, 27, 36, 34, 24, 21, 4, 31, 24, 22, 25, 29, 36, 10, 13, 10],
    [42, 150, 31, 12, 8],
    [66, 52, 5, 48, 12, 14, 3, 9, 1, 4, 7, 3, 3, 3, 2, 14, 4],
    [28, 16, 24, 21, 28, 16, 16, 13, 6, 6, 4, 4, 5, 3, 6, 4, 3, 1, 13, 5, 5, 3, 5, 1, 1, 1, 22],
]
LENGTH = 64
OF_EACH = {"train": 500, "test": 100}


def chapters(name):
    return gzip.decompress((TEXT / name).read_bytes()).decode().strip().split("\n\n")


def passages(chapter, tokenizer):
    """Runs of whole verses that fill a row as far as they can."""
    row = []
    for verse in chapter.split("\n"):
        ids = tokenizer.encode(verse, add_special_tokens=False).ids[: LENGTH - 2]
        if len(row) + len(ids) > LENGTH - 2:
            yield row
            row = []
        row = row + ids
    yield row


def write(name, array):
    buffer = io.BytesIO()
    numpy.save(buffer, array)
    (HERE / name).write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=0))


def main():
    tokenizer = Tokenizer.from_str(gzip.decompress((TEXT / "word_pieces.json.gz").read_bytes()).decode())
    first, last = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    sets = {"train": iter(chapters("train.txt.gz")), "test": iter(chapters("test.txt.gz"))}
    found = {name: [[] for _ in PARTS] for name in sets}
    number = 0
    for part, books in enumerate(PARTS):
        for _ in range(sum(books)):
            number += 1
            name = "test" if number % 20 == 0 else "train"
            found[name][part].extend(passages(next(sets[name]), tokenizer))
    assert all(next(rest, None) is None for rest in sets.values())
    rng = random.Random(1)
    for name, parts in found.items():
        chosen = [(part, row) for part, rows in enumerate(parts) for row in rng.sample(rows, OF_EACH[name])]
        rng.shuffle(chosen)
        token = numpy.zeros((len(chosen), LENGTH), numpy.uint16)
        for k, (_, row) in enumerate(chosen):
            token[k, : len(row) + 2] = [first, *row, last]
        real = numpy.arange(LENGTH) < [[len(row) + 2] for _, row in chosen]
        write(f"{name}-token.npy.gz", token)
        write(f"{name}-real.npy.gz", real.astype(numpy.uint8))
        write(f"{name}-segment.npy.gz", numpy.zeros_like(real, numpy.uint8))
        write(f"{name}-label.npy.gz", numpy.array([part for part, _ in chosen], numpy.uint8))


if __name__ == "__main__":
    main()
