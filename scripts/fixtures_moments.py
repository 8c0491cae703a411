"""Writes testdata/golden/moments.json: the maps of 8-bit optimizers (arXiv 2110.02861) and
the codes of some numbers, by torchao, whose maps are those of bitsandbytes.

    python scripts/fixtures_moments.py [testdata/golden/moments.json]

The numbers are shares of a block's scale, half of them evenly spread and half over the
powers of ten; nothing of gad is asked.
"""

import json
import pathlib
import sys
from importlib.metadata import version

import torch
from torchao.optim.quant_utils import create_dynamic_map, quantize_8bit_with_qmap

torch.set_num_threads(1)
torch.manual_seed(1)

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/golden/moments.json")
maps = []
for name, signed in (("first", True), ("second", False)):
    qmap = torch.tensor(create_dynamic_map(signed))
    y = torch.cat([torch.rand(60), 10 ** (-6 * torch.rand(60))])
    if signed:
        y = y * torch.where(torch.rand(120) < 0.5, -1.0, 1.0)
    codes = quantize_8bit_with_qmap(y, qmap)
    maps.append({"name": name, "values": qmap.tolist(), "y": y.tolist(), "codes": codes.tolist()})
about = {"made_by": "scripts/fixtures_moments.py", "torch": version("torch"), "torchao": version("torchao")}
rows = ",\n".join(json.dumps(m) for m in maps)
out.write_text(json.dumps(about)[:-1] + ', "maps": [\n' + rows + "\n]}\n")
