"""Writes testdata/model: tiny random Hugging Face folders with the values that
transformers and PyTorch compute from them.

    python scripts/fixtures_model.py [testdata/model [folder...]]

Each folder holds config.json and weights as save_pretrained writes them, and
  expected.json        library versions, sequences, and per sequence the response
                       tokens' log-probabilities and entropies at two temperatures,
                       or a classifier's scores
  expected_grad.safetensors   gradient by tensor name, in float32, of
                       the mean of -logp over all response tokens (temperature 1), or
                       sum_i (i+1)*score_i
  expected_step.safetensors   (of later folders) the weights after one step of AdamW by
                       that gradient: lr 1e-2, betas 0.9 and 0.999, eps 1e-4, weight decay
                       0.01 on matrices
All arithmetic is float32 on the CPU with eager attention.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

VOCAB = 97
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)

BASE = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, vocab_size=VOCAB, max_position_embeddings=256,
    rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    attn_implementation="eager",
)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=128)

# Queries grow at every eighth position.
MINISTRAL = dict(YARN, original_max_position_embeddings=8, beta_fast=2.0, beta_slow=0.2, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)

GRANITE4 = dict(embedding_multiplier=12.0, attention_multiplier=0.11, residual_multiplier=0.22, logits_scaling=3.0, num_local_experts=0, shared_intermediate_size=20,
                layer_types=["full_attention"] * 2, mamba_n_heads=4, mamba_d_head=8)


def theta(t):
    return dict(rope_type="default", rope_theta=t)


# Of later folders: small files.
SMALL = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24)
WIDE = dict(SMALL, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
GEMMA = dict(
    SMALL, num_hidden_layers=4, head_dim=6, query_pre_attn_scalar=9, sliding_window=5,
    layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    rope_parameters=dict(sliding_attention=theta(1e4), full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0)),
)


LFM2 = dict(SMALL, num_hidden_layers=4, norm_eps=1e-5, rope_parameters=theta(1e6))

QWEN35 = dict(SMALL, num_hidden_layers=4, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)


def mrope(share, sections, **rule):
    return dict(theta(1e6), partial_rotary_factor=share, mrope_section=sections, mrope_interleaved=True, **rule)


# Folders whose seed is not their place. Those of Qwen3.5 are the best conditioned of sixteen: of an output near
# zero, as a first token has it where query and key are nearly at right angles, the norm multiplies roundings.
SEEDS = {"lfm2": 100, "lfm2_bf16": 101, "qwen3_5": 124, "qwen3_5_bf16": 118, "qwen3_5_vision": 122, "qwen3_5_scorer": 119}

# folder: (class of the configuration, class of the model, settings, dtype, shard size)
T = transformers
FOLDERS = {
    "qwen2_tied": (T.Qwen2Config, T.Qwen2ForCausalLM, dict(tie_word_embeddings=True, rope_parameters=theta(1e6)), "float32", None),
    "qwen2_untied": (T.Qwen2Config, T.Qwen2ForCausalLM, dict(tie_word_embeddings=False, rope_parameters=theta(1e4)), "float32", None),
    "qwen2_bf16": (T.Qwen2Config, T.Qwen2ForCausalLM, dict(tie_word_embeddings=True, rope_parameters=theta(1e6)), "bfloat16", None),
    "qwen3": (T.Qwen3Config, T.Qwen3ForCausalLM, dict(tie_word_embeddings=True, head_dim=12, rope_parameters=theta(1e6)), "float32", None),
    "llama3_sharded": (T.LlamaConfig, T.LlamaForCausalLM, dict(tie_word_embeddings=False, rope_parameters=LLAMA3), "float32", "40KB"),
    "mistral": (T.MistralConfig, T.MistralForCausalLM, dict(tie_word_embeddings=False, sliding_window=None, head_dim=16, rope_parameters=theta(1e4)), "float32", None),
    "qwen2_scorer": (T.Qwen2Config, T.Qwen2ForSequenceClassification, dict(num_labels=1, rope_parameters=theta(1e6)), "float32", None),
    # The seed of a folder is its place here: new ones come at the end.
    "llama_linear": (T.LlamaConfig, T.LlamaForCausalLM, dict(**WIDE, tie_word_embeddings=True, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)), "float32", None),
    "qwen2_yarn": (T.Qwen2Config, T.Qwen2ForCausalLM, dict(**WIDE, tie_word_embeddings=True, rope_parameters=YARN), "float32", None),
    "llama_yarn": (T.LlamaConfig, T.LlamaForCausalLM, dict(**WIDE, tie_word_embeddings=True, rope_parameters=dict(YARN, truncate=False, mscale=0.7, mscale_all_dim=1.3, beta_fast=8.0)), "float32", None),
    "mistral_window": (T.MistralConfig, T.MistralForCausalLM, dict(**SMALL, tie_word_embeddings=False, sliding_window=7, rope_parameters=theta(1e4)), "float32", None),
    "gemma3": (T.Gemma3TextConfig, T.Gemma3ForCausalLM, dict(**GEMMA), "float32", None),
    "gemma3_bf16": (T.Gemma3TextConfig, T.Gemma3ForCausalLM, dict(**dict(GEMMA, sliding_window=23)), "bfloat16", None),
    "gemma3_scorer": (T.Gemma3TextConfig, T.Gemma3TextForSequenceClassification, dict(**dict(GEMMA, sliding_window=22), num_labels=1), "float32", None),
    "smollm3": (T.SmolLM3Config, T.SmolLM3ForCausalLM, dict(**dict(SMALL, num_hidden_layers=4), rope_parameters=theta(2e6)), "float32", None),
    "smollm3_scorer": (T.SmolLM3Config, T.SmolLM3ForSequenceClassification, dict(**SMALL, num_labels=1, no_rope_layers=[0, 1], rope_parameters=theta(2e6)), "float32", None),
    "granite": (T.GraniteConfig, T.GraniteForCausalLM, dict(**SMALL, tie_word_embeddings=True, embedding_multiplier=12.0, attention_multiplier=0.11, residual_multiplier=0.22, logits_scaling=3.0,
                rope_parameters=theta(1e4)), "float32", None),
    "olmo2": (T.Olmo2Config, T.Olmo2ForCausalLM, dict(**SMALL, tie_word_embeddings=False, rope_parameters=theta(5e5)), "float32", None),
    "olmo2_scorer": (T.Olmo2Config, T.Olmo2ForSequenceClassification, dict(**SMALL, num_labels=1, rope_parameters=theta(5e5)), "float32", None),
    "llama_scorer": (T.LlamaConfig, T.LlamaForSequenceClassification, dict(**SMALL, num_labels=1, rope_parameters=theta(1e4)), "float32", None),
    "mistral_scorer": (T.MistralConfig, T.MistralForSequenceClassification, dict(**SMALL, num_labels=1, sliding_window=5, rope_parameters=theta(1e4)), "float32", None),
    "qwen3_scorer": (T.Qwen3Config, T.Qwen3ForSequenceClassification, dict(**SMALL, num_labels=1, head_dim=6, rope_parameters=theta(1e4)), "float32", None),
    # From here on by transformers 5.24, with expected_step.
    "olmo3": (T.Olmo3Config, T.Olmo3ForCausalLM, dict(**dict(SMALL, num_hidden_layers=4), sliding_window=7, rope_parameters=dict(sliding_attention=theta(5e5), full_attention=dict(YARN, rope_theta=5e5))), "float32", None),
    "olmo3_scorer": (T.Olmo3Config, T.Olmo3ForSequenceClassification, dict(**SMALL, num_labels=1, sliding_window=6, layer_types=["full_attention", "sliding_attention"],
                     rope_parameters=dict(sliding_attention=theta(2e4), full_attention=theta(1e4))), "float32", None),
    "ministral3": (T.Ministral3Config, T.Ministral3ForCausalLM, dict(**SMALL, tie_word_embeddings=True, head_dim=6, rope_parameters=MINISTRAL), "float32", None),
    "ministral3_scorer": (T.Ministral3Config, T.Ministral3ForSequenceClassification, dict(**SMALL, num_labels=1, head_dim=6, sliding_window=9, rope_parameters=dict(MINISTRAL, mscale=0.8, mscale_all_dim=1.2)), "float32", None),
    # As it is released: the text part of a model that also reads images.
    "ministral3_vision": (T.Mistral3Config, T.Mistral3ForConditionalGeneration, dict(
        text_config=dict(BASE, **SMALL, model_type="ministral3", tie_word_embeddings=True, head_dim=6, rope_parameters=MINISTRAL), tie_word_embeddings=True,
        vision_config=dict(model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, head_dim=4, image_size=16, patch_size=8)), "float32", None),
    "phi3": (T.Phi3Config, T.Phi3ForCausalLM, dict(**SMALL, tie_word_embeddings=True, max_position_embeddings=256, original_max_position_embeddings=64, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.5, original_max_position_embeddings=64, short_factor=[1.25], long_factor=[9.0])), "float32", None),
    "phi3_scorer": (T.Phi3Config, T.Phi3ForSequenceClassification, dict(**dict(SMALL, hidden_size=32), num_labels=1, sliding_window=6, rope_parameters=dict(theta(1e4), partial_rotary_factor=0.75)), "float32", None),
    "granite4": (T.GraniteMoeHybridConfig, T.GraniteMoeHybridForCausalLM, dict(**SMALL, **GRANITE4, tie_word_embeddings=True, position_embedding_type="rope", rope_parameters=theta(1e4)), "float32", None),
    "granite4_nope": (T.GraniteMoeHybridConfig, T.GraniteMoeHybridForCausalLM, dict(**SMALL, **GRANITE4, tie_word_embeddings=False, position_embedding_type="nope"), "float32", None),
    "gemma2": (T.Gemma2Config, T.Gemma2ForCausalLM, dict(**dict(SMALL, num_hidden_layers=3), head_dim=6, query_pre_attn_scalar=9, sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
               rope_parameters=theta(1e4)), "float32", None),
    "gemma2_scorer": (T.Gemma2Config, T.Gemma2ForSequenceClassification, dict(**SMALL, num_labels=1, head_dim=6, query_pre_attn_scalar=9, sliding_window=22, attn_logit_softcapping=1.0,
                      layer_types=["full_attention", "sliding_attention"], rope_parameters=theta(1e4)), "float32", None),
    "lfm2": (T.Lfm2Config, T.Lfm2ForCausalLM, dict(**LFM2, layer_types=["conv", "full_attention", "conv", "conv"], block_multiple_of=8), "float32", None),
    "lfm2_bf16": (T.Lfm2Config, T.Lfm2ForCausalLM, dict(**LFM2, full_attn_idxs=[1, 3], conv_L_cache=4, block_auto_adjust_ff_dim=False, tie_word_embeddings=False), "bfloat16", None),
    "qwen3_5": (T.Qwen3_5TextConfig, T.Qwen3_5ForCausalLM, dict(**QWEN35, tie_word_embeddings=False, rope_parameters=mrope(0.5, [1, 1, 0])), "float32", None),
    "qwen3_5_bf16": (T.Qwen3_5TextConfig, T.Qwen3_5ForCausalLM, dict(**dict(QWEN35, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=6), full_attention_interval=2,
                     linear_conv_kernel_dim=3, tie_word_embeddings=True, rope_parameters=mrope(0.25, [1, 0, 0])), "bfloat16", None),
    # As it is released: the text part of a model that also reads images.
    "qwen3_5_vision": (T.Qwen3_5Config, T.Qwen3_5ForConditionalGeneration, dict(
        text_config=dict(BASE, **dict(QWEN35, linear_value_head_dim=12), model_type="qwen3_5_text", tie_word_embeddings=True, rope_parameters=mrope(0.75, [1, 1, 1])), tie_word_embeddings=True,
        vision_config=dict(model_type="qwen3_5_vision", hidden_size=8, intermediate_size=8, depth=1, num_heads=2, patch_size=4, num_position_embeddings=4, out_hidden_size=16)), "float32", None),
    "qwen3_5_scorer": (T.Qwen3_5TextConfig, T.Qwen3_5TextForSequenceClassification, dict(**dict(QWEN35, num_hidden_layers=2), num_labels=1,
                       layer_types=["full_attention", "linear_attention"], rope_parameters=dict(mrope(0.5, [1, 1, 0]), rope_type="yarn", factor=4.0, original_max_position_embeddings=64)), "float32", None),
}


STEPPED = list(FOLDERS)[list(FOLDERS).index("olmo3"):]


def randomise(model, seed):
    """Weights at which logits are far from flat and every parameter matters."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=g)
            if "norm" in name:  # Gemma's files, and most norms of Qwen3.5's, have the difference from 1
                offset = "Gemma" in type(model).__name__ or "Qwen3_5" in type(model).__name__ and "linear_attn.norm" not in name
                p.copy_(float(not offset) + 0.2 * x)
            elif p.dim() == 1:
                p.copy_(0.3 * x)
            elif "embed" in name:
                p.copy_(0.5 * x)
            else:
                p.copy_(1.2 * x / p.shape[1] ** 0.5)


def sequences(seed):
    g = torch.Generator().manual_seed(1000 + seed)
    return [dict(ids=torch.randint(3, VOCAB, (n,), generator=g).tolist(), prompt=p)
            for n, p in [(7, 3), (40, 11), (2, 1), (23, 22)]]


def distribution(model, ids, temperature):
    logits = model(torch.tensor([ids])).logits[0].float() / temperature
    return torch.log_softmax(logits, -1)


def build(root, name, seed):
    config_class, model_class, settings, dtype, shard = FOLDERS[name]
    out = root / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    model = model_class(config_class(**{**({} if "text_config" in settings else BASE), **settings}))
    randomise(model, seed)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(out, **({"max_shard_size": shard} if shard else {}))
    (out / "generation_config.json").unlink(missing_ok=True)
    for file in out.iterdir():
        file.chmod(0o644)

    # What is expected comes from the folder as written, widened to float32.
    model, info = model_class.from_pretrained(out, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    model.train(False)
    seqs = sequences(seed)
    expected = dict(libraries=dict(torch=torch.__version__, transformers=T.__version__), sequences=seqs)
    if "score" in dict(model.named_children()):
        scores = torch.stack([model(torch.tensor([s["ids"]])).logits[0, 0] for s in seqs])
        expected["scores"] = scores.tolist()
        loss = (scores * torch.arange(1, len(seqs) + 1)).sum()
    else:
        expected["values"] = []
        for temperature in (1.0, 0.7):
            logps, ents = [], []
            for s in seqs:
                logp = distribution(model, s["ids"], temperature)[s["prompt"] - 1:-1]
                logps.append(logp.gather(1, torch.tensor(s["ids"][s["prompt"]:])[:, None])[:, 0])
                ents.append(-(logp.exp() * logp).sum(-1))
            expected["values"].append(dict(temperature=temperature, logp=[x.tolist() for x in logps], entropy=[x.tolist() for x in ents]))
            if temperature == 1.0:
                loss = -torch.cat(logps).mean()
    expected["loss"] = loss.item()
    loss.backward()
    named = {n.replace("model.language_model.", "model."): p for n, p in model.named_parameters() if p.grad is not None}
    save_file({n: p.grad.contiguous() for n, p in named.items()}, out / "expected_grad.safetensors")
    if name in STEPPED:
        groups = [[p for p in named.values() if (p.dim() > 1) == matrix] for matrix in (True, False)]
        torch.optim.AdamW([dict(params=groups[0], weight_decay=0.01), dict(params=groups[1], weight_decay=0.0)], lr=1e-2, betas=(0.9, 0.999), eps=1e-4).step()
        save_file({n: p.detach().contiguous() for n, p in named.items()}, out / "expected_step.safetensors")
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(name, "loss", loss.item())


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/model")
    for i, name in enumerate(FOLDERS):
        if len(sys.argv) < 3 or name in sys.argv[2:]:
            build(root, name, SEEDS.get(name, i))


if __name__ == "__main__":
    main()
