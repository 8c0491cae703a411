"""Writes testdata/gguf: GGUF files made by other programs, and what those read in them.

    python scripts/fixtures_gguf.py LLAMA_CPP [testdata/gguf [models NAME...]]

types.gguf          blocks of every quantised type that gad reads, as gguf-py writes them:
                    random bytes, under scales of every kind (zeros, negative, subnormal,
                    the largest, infinite, NaN); and f32, f16 and bf16 of such values
types.safetensors   their values in float32, by gguf-py (gguf.quants.dequantize)
NAME.gguf           each model of testdata/model, as llama.cpp's converter writes it in f32,
                    with tokens that mean nothing: names, order of rows, metadata

LLAMA_CPP is a folder of llama.cpp's source, whose converter and gguf-py are used. Needs
torch, transformers, gguf (0.19), safetensors, numpy.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import save_file

llama = pathlib.Path(sys.argv[1])
out = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "testdata/gguf")
out.mkdir(parents=True, exist_ok=True)
if sys.argv[3:4] == ["models"]:  # in a process of its own: the converter wants its own gguf-py
    sys.path.insert(0, str(llama / "gguf-py"))
import gguf  # noqa: E402
from gguf import GGMLQuantizationType as T  # noqa: E402

# Of the scales in a block, where they are. Others are whole numbers, of any bytes.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2],
          T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0]}
SPECIAL = np.array([0x0000, 0x8000, 0x3C00, 0xBE00, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3555, 0x1234], dtype=np.uint16)


def types():
    rng = np.random.default_rng(20261123)
    w = gguf.GGUFWriter(str(out / "types.gguf"), "none")
    expected = {}
    for kind, places in SCALES.items():
        elems, size = gguf.GGML_QUANT_SIZES[kind]
        rows = len(SPECIAL)
        data = rng.integers(0, 256, size=(rows, size), dtype=np.uint8)
        for k, at in enumerate(places):
            # A minimum meets every kind of scale, not only its own.
            data[:, at:at + 2] = np.roll(SPECIAL, 5 * k).reshape(-1, 1).view(np.uint8)
        with np.errstate(all="ignore"):
            expected[kind.name.lower()] = gguf.quants.dequantize(data, kind).astype(np.float32)
        w.add_tensor(kind.name.lower(), data, raw_dtype=kind)
    bits = np.concatenate([SPECIAL, rng.integers(0, 1 << 16, size=50, dtype=np.uint16)]).reshape(2, -1)
    w.add_tensor("f16", bits.view(np.float16))
    expected["f16"] = gguf.quants.dequantize(bits.view(np.uint8), T.F16)
    w.add_tensor("bf16", bits.view(np.uint8), raw_dtype=T.BF16)
    expected["bf16"] = gguf.quants.dequantize(bits.view(np.uint8), T.BF16)
    wide = rng.integers(0, 1 << 32, size=(3, 8), dtype=np.uint32).view(np.float32)
    w.add_tensor("f32", wide)
    expected["f32"] = wide
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    save_file({k: np.ascontiguousarray(v) for k, v in expected.items()}, out / "types.safetensors")


def models(names):
    sys.path.insert(0, str(llama))
    os.environ["NO_LOCAL_GGUF"] = "1"
    import convert_hf_to_gguf as convert
    from conversion import get_model_class

    def vocab(self):
        self.gguf_writer.add_tokenizer_model("gpt2")
        self.gguf_writer.add_tokenizer_pre("qwen2")
        n = self.hparams["vocab_size"]
        self.gguf_writer.add_token_list([f"t{i}" for i in range(n)])
        self.gguf_writer.add_token_types([1] * n)
        self.gguf_writer.add_token_merges(["t 1"])

    for folder in sorted(pathlib.Path("testdata/model").iterdir()):
        config = json.loads((folder / "config.json").read_text())
        name = config["architectures"][0]
        if names and folder.name not in names:
            continue
        if not name.endswith("ForCausalLM") or config.get("dtype", "float32") != "float32":
            continue
        if config["model_type"] == "mistral" and config.get("sliding_window"):
            continue  # llama.cpp computes it without the window
        if "mscale" in (config.get("rope_parameters") or {}) and config["model_type"] != "ministral3":
            continue  # the converter leaves it out
        if config.get("position_embedding_type") == "nope":
            continue  # the converter says that such a model rotates
        kind = get_model_class(name)
        kind.set_vocab = getattr(kind, "Ministral3Model", kind).set_vocab = vocab  # one class wraps another
        with tempfile.TemporaryDirectory() as tmp:
            copy = pathlib.Path(tmp) / folder.name
            shutil.copytree(folder, copy)
            if config["model_type"] == "granitemoehybrid":  # as released folders have it: the converter knows only these
                config |= dict(layer_types=["attention"] * config["num_hidden_layers"], num_experts_per_tok=0, intermediate_size=config["shared_intermediate_size"])
                (copy / "config.json").write_text(json.dumps(config))
            if config["model_type"] == "qwen3_5_text":  # the converter takes a folder without layers that draft only so
                kind.no_mtp = True
            tokens = {f"t{i}": i for i in range(config["vocab_size"])}  # Gemma's class counts them
            (copy / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
            sys.argv = ["convert", str(copy), "--outfile", str(out / f"{folder.name}.gguf"), "--outtype", "f32", "--no-lazy"]
            convert.main()


if sys.argv[3:4] == ["models"]:
    models(sys.argv[4:])
else:
    types()
    subprocess.run([sys.executable, __file__, str(llama), str(out), "models"], check=True)
