package files

import "strings"

// prefixed is tensors whose names all have one prefix more, or one less, than those of a released
// folder: torch.compile, DistributedDataParallel, vision models and bare models leave such.
type prefixed struct {
	Tensors
	prefix string
	bare   bool // without "model."
}

// UnderPrefix returns f by the usual names, if one prefix stands between those and its own.
func UnderPrefix(f Tensors) Tensors {
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

// bareOf begins the names of all tensors but the head's.
const bareOf = "model."

func (p prefixed) Tensor(name string) (*OnDisk, bool) {
	own := name
	if p.bare {
		own = strings.TrimPrefix(name, bareOf)
	}
	if t, ok := p.Tensors.Tensor(p.prefix + own); ok || name != HeadName {
		return t, ok
	}
	return p.Tensors.Tensor(name) // the head stands beside the model
}

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

const (
	EmbedName = "model.embed_tokens.weight"
	HeadName  = "lm_head.weight"
	ScoreName = "score.weight"
)
