#!/usr/bin/env python3
"""Draws the images of this folder: discs and boxes on a noisy ground, and the class of every pixel.

    python3 make.py

writes the four files beside it. Nothing but the standard library is needed; the same files come out every time.
"""

import gzip
import pathlib
import random
import struct

SIZE = 32
GROUND, DISC, BOX = 0, 1, 2


def draw(rng):
    """One image and its mask, row-major: a disc and a box of random places, sizes and greys; what is drawn later covers."""
    ground = rng.randrange(40, 90)
    image = [[ground] * SIZE for _ in range(SIZE)]
    mask = [[GROUND] * SIZE for _ in range(SIZE)]
    figures = [DISC, BOX]
    rng.shuffle(figures)
    for figure in figures:
        grey, radius = rng.randrange(130, 230), rng.randrange(4, 9)
        row, col = rng.randrange(4, SIZE - 4), rng.randrange(4, SIZE - 4)
        for r in range(SIZE):
            for c in range(SIZE):
                dr, dc = r - row, c - col
                inside = dr * dr + dc * dc <= radius * radius if figure == DISC else max(abs(dr), abs(dc)) <= radius * 0.8
                if inside:
                    image[r][c], mask[r][c] = grey, figure
    # Few levels of noise keep the files small.
    pixels = [min(255, max(0, v + 8 * rng.randrange(-2, 3))) for line in image for v in line]
    return bytes(pixels), bytes(v for line in mask for v in line)


def write(name, count, payload):
    header = struct.pack(">HBBIII", 0, 8, 3, count, SIZE, SIZE)
    # No time in the header: the same bytes every time.
    data = gzip.compress(header + payload, 9, mtime=0)
    pathlib.Path(__file__).with_name(name).write_bytes(data)


def main():
    for part, count, seed in [("train", 1200, 1), ("test", 200, 2)]:
        rng = random.Random(seed)
        images, masks = zip(*(draw(rng) for _ in range(count)))
        write(f"{part}-images-idx3-ubyte.gz", count, b"".join(images))
        write(f"{part}-masks-idx3-ubyte.gz", count, b"".join(masks))


if __name__ == "__main__":
    main()
