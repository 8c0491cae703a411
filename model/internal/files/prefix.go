package files

import "strings"

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

// Hugging Face's names of the embedding, the language model's head and the scorer's head.
const (
	EmbedName = "model.embed_tokens.weight"
	HeadName  = "lm_head.weight"
	ScoreName = "score.weight"
)
