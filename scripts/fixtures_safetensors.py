#!/usr/bin/env python3
"""Writes testdata/safetensors: files of the reference implementations.

Needs torch, safetensors and transformers; the versions that wrote what is
checked in stand in testdata/safetensors/README.md, which this writes too.
"""
import json
import os
import shutil

import safetensors
import safetensors.torch
import torch
import transformers

OUT = os.path.join(os.path.dirname(__file__), "..", "testdata", "safetensors")


def dtypes():
    """One file with every type, and float32 values beside torch's roundings of them."""
    gen = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (256,), generator=gen, dtype=torch.int64).to(torch.int32)
    anywhere = bits.view(torch.float32)
    # The range of float16, its subnormals and its ends.
    near = torch.randn(256, generator=gen) * torch.exp2(torch.randint(-28, 18, (256,), generator=gen).float())
    ends = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), 65504.0, 65519.996, 65520.0, 65536.0,
                         2**-14, 2**-14 - 2**-25, 2**-24, 2**-25, 2**-25 * 1.0000001, 3 * 2**-25, 2**-126, 2**-149,
                         1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 3.3895314e38, 3.4028235e38])
    x = torch.cat([ends, near, anywhere])
    tensors = {
        "round.f32": x,
        "round.bf16": x.to(torch.bfloat16),
        "round.f16": x.to(torch.float16),
        "round.f64": x.to(torch.float64),
        "scalar": torch.tensor(-7, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "matrix": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "bool": torch.tensor([True, False, True]),
        "u8": torch.tensor([0, 255], dtype=torch.uint8),
        "i8": torch.tensor([-128, 127], dtype=torch.int8),
        "i16": torch.tensor([-32768, 32767], dtype=torch.int16),
        "i32": torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32),
        "u16": torch.tensor([65535], dtype=torch.uint16),
        "u32": torch.tensor([2**32 - 1], dtype=torch.uint32),
        "u64": torch.tensor([2**63], dtype=torch.uint64),
        "f8.e4m3": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
        "f8.e5m2": torch.tensor([1.0, -2.0]).to(torch.float8_e5m2),
        "c64": torch.tensor([1 + 2j], dtype=torch.complex64),
        'name "quoted" \\ <&> ü \u2028': torch.tensor([1.0]),
    }
    safetensors.torch.save_file(tensors, os.path.join(OUT, "dtypes.safetensors"),
                                metadata={"format": "pt"})


def sharded():
    """A folder of transformers' save_pretrained, in shards."""
    torch.manual_seed(1)
    config = transformers.Qwen2Config(vocab_size=16, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
                                      num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    model = transformers.Qwen2ForCausalLM(config).to(torch.bfloat16)
    where = os.path.join(OUT, "sharded")
    shutil.rmtree(where, ignore_errors=True)
    model.save_pretrained(where, max_shard_size="1KB")
    for name in os.listdir(where):
        if "safetensors" not in name:
            os.remove(os.path.join(where, name))
    sums = {n: float(t.double().sum()) for n, t in model.state_dict().items() if n != "lm_head.weight"}
    with open(os.path.join(OUT, "sharded_sums.json"), "w") as f:
        json.dump(sums, f, indent=1, sort_keys=True)
        f.write("\n")


os.makedirs(OUT, exist_ok=True)
dtypes()
sharded()
with open(os.path.join(OUT, "README.md"), "w") as f:
    f.write(f"""Written by `scripts/fixtures_safetensors.py` with safetensors {safetensors.__version__}, \
torch {torch.__version__.split("+")[0]}, transformers {transformers.__version__}.

- `dtypes.safetensors`: every type that torch can save; `round.*` are the same float32 values, rounded by torch.
- `sharded/`: a Qwen2 model of 2 layers in bfloat16, from `save_pretrained(max_shard_size="1KB")`; `sharded_sums.json` has the float64 sum of each of its tensors.
""")
