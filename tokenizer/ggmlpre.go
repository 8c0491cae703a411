package tokenizer

// ggmlSplits is one of llama.cpp's pre-tokenizers (tokenizer.ggml.pre), as the models' own
// tokenizer.json files write it if llama.cpp's pattern only approximates it.
type ggmlSplits struct {
	patterns []string // each cuts the pieces of the previous one
	ignores  bool     // a word in the vocabulary is its own token
	nfc      bool     // the model's normalizer is NFC, which llama.cpp leaves out
	addBOS   bool     // the default for a file without the key
	text     bool     // over characters, blanks written as ▁; patterns are not used
}

// Patterns of pre-tokenizers.
const (
	patternGPT4o   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternTekken  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternHan     = `[一-龥\x{3040}-ゟ゠-ヿ]+`
	patternCJK     = `[一-龥ࠀ-一가-\x{D7FF}]+`
	patternLines   = `[\r\n]`
	patternSeek3   = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
	patternBloom   = ` ?[^(\s|.,!?…。，、।۔،)]+`
	patternMarks   = "[\\p{P}\\$\\+<=>\\^~\\|`]+"
	patternThree   = `[0-9][0-9][0-9]`
	patternLetters = `\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+`
)

// ggmlPreTokenizers are llama.cpp's pre-tokenizers by name.
var ggmlPreTokenizers = func() map[string]ggmlSplits {
	table := map[string]ggmlSplits{}
	add := func(s ggmlSplits, names ...string) {
		for _, name := range names {
			table[name] = s
		}
	}
	of := func(patterns ...string) ggmlSplits { return ggmlSplits{patterns: patterns} }
	add(of(`[\p{P}\$\+<=>\^~\|]+`, patternGPT2, patternDigit+"+", patternThree), "default", "")
	add(of(patternGPT2), "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de",
		"jina-v1-en", "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "exaone4",
		"jais", "trillion", "granite-docling")
	add(ggmlSplits{patterns: []string{patternGPT2}, nfc: true}, "mpt", "olmo", "modern-bert")
	add(of(patternDigit, patternGPT2), "smollm", "starcoder", "refact", "codeshell", "exaone",
		"minerva-7b", "mellum2")
	add(ggmlSplits{patterns: []string{patternDigit, patternGPT2}, nfc: true}, "command-r")
	add(ggmlSplits{patterns: []string{patternLlama3}, ignores: true, addBOS: true}, "llama3",
		"llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
		"jina-v5-nano")
	add(of(patternLlama3), "smaug-bpe", "dbrx", "chatglm-bpe")
	add(ggmlSplits{patterns: []string{patternLlama3}, ignores: true}, "glm4", "glm5")
	add(ggmlSplits{patterns: []string{patternQwen2}, nfc: true}, "qwen2", "megrez", "stablelm2")
	add(of(patternQwen2), "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "solar-open", "grok-2")
	add(ggmlSplits{patterns: []string{patternQwen35}, nfc: true}, "qwen35")
	add(of(patternLines, patternLetters, `\s?[!-/:-~！-／：-～‘-‟　-。]+`, `\s+$`, patternCJK, patternDigit+"+"), "deepseek-llm")
	add(of(patternLines, `\s?\p{L}+`, `\s?\p{P}+`, patternCJK, patternDigit), "deepseek-coder")
	add(of(`\p{N}{1,3}`, patternHan, patternSeek3), "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4")
	add(of(patternMarks, patternGPT2, patternThree), "falcon")
	add(of(patternBloom), "poro-chat", "bloom", "gpt3-finnish")
	add(of(patternBloom, patternDigit), "viking")
	add(ggmlSplits{patterns: []string{patternTekken}, ignores: true, addBOS: true}, "tekken")
	add(of(patternGPT4o), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")
	add(of(`\d{1,3}(?=(?:\d{3})*\b)`, patternGPT4o), "tiny_aya", "cohere2moe")
	add(of(patternDigit+"+", `(?=(\d{3})+(?!\d))`), "superbpe")
	add(of(`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`), "bailingmoe", "bailingmoe2", "llada-moe")
	add(of(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`), "seed-coder")
	add(ggmlSplits{text: true}, "sarvam-moe")
	return table
}()

// ggmlPre has llama.cpp's names of pre-tokenizers by pattern, and by whether a word in the
// vocabulary is its own token (ignore_merges), which llama.cpp ties to the name. Names whose
// pattern is rewritten there, so that it cuts some texts differently, say which texts or are left
// out.
var ggmlPre = map[string]struct{ merges, ignores, differs string }{
	patternQwen2:                      {merges: "qwen2"},
	patternLlama3:                     {merges: "smaug-bpe", ignores: "llama-bpe"},
	patternGPT2:                       {merges: "gpt-2"},
	patternDigit + "\n" + patternGPT2: {merges: "smollm"},
	patternQwen35:                     {merges: "qwen35"},
	patternGPT4o:                      {merges: "gpt-4o", differs: rewrittenWords},
	patternTekken:                     {ignores: "tekken", differs: rewrittenWords},
}

// patternQwen35 is the pattern of Qwen3.5, which has no hand-written splitter.
const patternQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// rewrittenWords are the texts that llama.cpp's form of two patterns cuts in other places
// (src/llama-vocab.cpp): a letter outside of ASCII counts as a small and as a capital one there,
// and a combining mark ends a word.
const rewrittenWords = "words with combining marks (Hindi, Thai), and capitals outside of ASCII inside a word"
