package architecture

// Kind is the head on top of the backbone.
type Kind int

// The kinds of model.
const (
	LM Kind = iota // *ForCausalLM: a distribution over the next token
	// *ForSequenceClassification with one label, no bias: a score at the last token
	Scorer
)

// String returns the class suffix of the kind in transformers.
func (k Kind) String() string { return ClassSuffix[k] }
