package files

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gad/model/internal/rope"
)

// prefixed renames tensors that have one prefix more or less than those of a released folder, as
// torch.compile, DistributedDataParallel, vision models and bare models write them.
type prefixed struct {
	Tensors
	prefix string // in front of every name; may be empty
	bare   bool   // names lack "model."
}

// StripPrefix returns f under Hugging Face's names. It finds the file's prefix from its name of the
// embedding, and returns f itself if that name is the usual one or is missing.
func StripPrefix(f Tensors) Tensors {
	if _, ok := f.Tensor(EmbedName); ok {
		return f
	}
	for _, name := range f.Names() {
		if prefix, ok := strings.CutSuffix(name, EmbedName); ok {
			return prefixed{f, prefix, false}
		}
	}
	for _, name := range f.Names() {
		if prefix, ok := strings.CutSuffix(name, strings.TrimPrefix(EmbedName, bareOf)); ok {
			return prefixed{f, prefix, true}
		}
	}
	return f
}

// ofText is what stands before the layers in the names of adapters that were trained on a model
// that also reads images, where prefix stands in others.
const ofText = "language_model."

// StripText returns adapters' tensors under the names of a language model, whose layers are behind
// prefix.
func StripText(f Tensors, prefix string) Tensors {
	if !slices.ContainsFunc(f.Names(),
		func(name string) bool { return strings.HasPrefix(name, prefix+ofText) }) {
		return f
	}
	return ofVision{f, prefix}
}

// ofVision is the adapters of a model that also reads images.
type ofVision struct {
	Tensors
	prefix string
}

// Tensor returns the tensor with the name in a language model.
func (v ofVision) Tensor(name string) (*OnDisk, bool) {
	if rest, ok := strings.CutPrefix(name, v.prefix); ok {
		name = v.prefix + ofText + rest
	}
	return v.Tensors.Tensor(name)
}

// Names returns the names in a language model.
func (v ofVision) Names() (names []string) {
	for _, name := range v.Tensors.Names() {
		if rest, ok := strings.CutPrefix(name, v.prefix+ofText); ok {
			name = v.prefix + rest
		}
		names = append(names, name)
	}
	return names
}

// bareOf is the prefix of every tensor's name except the head's.
const bareOf = "model."

// Tensor returns the tensor with Hugging Face's name; lm_head also without the prefix.
func (p prefixed) Tensor(name string) (*OnDisk, bool) {
	own := name
	if p.bare {
		own = strings.TrimPrefix(name, bareOf)
	}
	if t, ok := p.Tensors.Tensor(p.prefix + own); ok || name != HeadName {
		return t, ok
	}
	return p.Tensors.Tensor(name) // the head is outside the prefixed module
}

// Names returns Hugging Face's names; a tensor outside the prefix keeps its own.
func (p prefixed) Names() (names []string) {
	for _, name := range p.Tensors.Names() {
		if own, ok := strings.CutPrefix(name, p.prefix); ok {
			if name = own; p.bare && own != HeadName && own != ScoreName {
				name = bareOf + own
			}
		}
		names = append(names, name)
	}
	return names
}

// textOf has, by model_type of a model that also reads images, the model_type of its text part.
var textOf = map[string][]string{"mistral3": {"ministral3", "mistral"},
	"qwen3_5": {"qwen3_5_text"}}

// others are the parts of released folders that a language model does without: those that read
// images, and layers that draft the tokens behind the next (Qwen3.5's mtp).
var others = []string{"vision_tower.", "multi_modal_projector.", "visual.", "mtp."}

// Left reports whether a tensor belongs to another part than the language model, which is not read.
func Left(name string) bool {
	name = strings.TrimPrefix(name, bareOf)
	return slices.ContainsFunc(others, func(part string) bool {
		return strings.HasPrefix(name, part)
	})
}

// TextConfig returns the text_config of a config.json raw whose model also reads images and has a
// language model as its text part, completed by the outer keys of dtype, tokens and quantisation.
// It returns any other raw unchanged.
func TextConfig(raw map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	var outer, inner string
	if json.Unmarshal(raw["model_type"], &outer) != nil || textOf[outer] == nil {
		return raw, nil
	}
	var text map[string]json.RawMessage
	if err := json.Unmarshal(raw["text_config"], &text); err != nil || text == nil {
		return nil, fmt.Errorf("key \"text_config\": is missing, or no object: a %s has one", outer)
	}
	if json.Unmarshal(text["model_type"], &inner) != nil ||
		!slices.Contains(textOf[outer], inner) {
		return nil, fmt.Errorf(
			"key \"text_config\": model_type %q: %w: the text part of a %s is read if it is %s", inner,
			rope.ErrUnsupported, outer, strings.Join(textOf[outer], " or "))
	}
	for _, key := range []string{"dtype", "torch_dtype", "tie_word_embeddings", "bos_token_id",
		"eos_token_id", "pad_token_id", "quantization_config"} {
		if _, ok := text[key]; !ok && raw[key] != nil {
			text[key] = raw[key]
		}
	}
	delete(text, "architectures")
	return text, nil
}

// Hugging Face's names of the embedding, the language model's head and the scorer's head.
const (
	EmbedName = "model.embed_tokens.weight"
	HeadName  = "lm_head.weight"
	ScoreName = "score.weight"
)
