package model

// Shape is a published architecture and its name.
type Shape struct {
	Name   string
	Config Config
}

// Qwen25 are the shapes of Qwen2.5 (arXiv 2412.15115), as config.json of Qwen/Qwen2.5-0.5B,
// -1.5B, -3B and -7B on the Hugging Face hub has them, smallest first.
var Qwen25 = []Shape{
	{"Qwen2.5-0.5B", qwen2(896, 24, 14, 2, 4864, 151936, true)},
	{"Qwen2.5-1.5B", qwen2(1536, 28, 12, 2, 8960, 151936, true)},
	{"Qwen2.5-3B", qwen2(2048, 36, 16, 2, 11008, 151936, true)},
	{"Qwen2.5-7B", qwen2(3584, 28, 28, 4, 18944, 152064, false)},
}

// qwen2 returns the configuration of a Qwen2.5 model of these sizes.
func qwen2(hidden, layers, heads, kv, ffn, vocab int, tied bool) Config {
	return Config{Architecture: "Qwen2", Hidden: hidden, Layers: layers, Heads: heads, KVHeads: kv,
		HeadDim: hidden / heads, FFN: ffn, Vocab: vocab,
		MaxPosition: 32768, RMSEps: 1e-6, RopeTheta: 1e6, TieEmbeddings: tied, QKVBias: true}
}
