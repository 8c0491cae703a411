"""Writes testdata/quant/blocks.bin: blocks that gguf-py's reference quantisers wrote.

    python scripts/fixtures_quant.py [testdata/quant]

Each of 256 records is 32 float32 values, their block of Q8_0 (34 bytes) and their block of
Q4_0 (18 bytes), little-endian, by gguf.quants.quantize. Needs gguf (0.19), numpy.
"""
import pathlib
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import quantize

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/quant")
out.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng(1)
x = rng.standard_normal((256, 32)).astype(np.float32)
x *= np.exp2(rng.integers(-30, 12, (256, 1))).astype(np.float32)  # scales from below binary16's least to large ones
x[200:216] = np.round(x[200:216] / np.abs(x[200:216]).max(axis=1, keepdims=True) * 8) / 4  # many equal magnitudes, halves
x[216:224] = 0
x[220:224, 5] = [1e-30, -1e-36, 65504 * 8, -3]
x[224:240] = rng.integers(-127, 128, (16, 32)) * np.float32(0.0078125)
x[240:248, 1::2] = -x[240:248, ::2]
with np.errstate(over="ignore"):
    q8, q4 = quantize(x, T.Q8_0), quantize(x, T.Q4_0)
np.concatenate([x.view(np.uint8), q8, q4], axis=1).tofile(out / "blocks.bin")
