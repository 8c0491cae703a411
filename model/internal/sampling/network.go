package sampling

import (
	"gad/internal/compute"
	"gad/model/internal/pages"
	"gad/model/internal/sequence"
	"gad/model/internal/workspace"
)

// Model is what an engine needs of the language model that it samples from.
type Model struct {
	Network
	Backend     compute.Backend
	Workspace   *workspace.Workspace
	Head        *compute.Param // [V,D]
	Tokens      []bool         // by id: whether the tokenizer has a token for it; nil: for all
	MaxPosition int            // most tokens of a sequence
	// layers keep a state of each sequence, which has no pages: no sequence begins with a prefix that
	// another has left
	Stateful bool
}

// Network runs the blocks of a model, with a cache of keys and values.
type Network interface {
	// Open makes caches of n positions each, for sequences of up to longest tokens, and states of so
	// many sequences. The workspace
	// has the error of a cache that does not fit (Workspace.Take); Close follows then too, but
	// not after an error of Open.
	Open(n, longest, states int) error
	// Close gives the caches' memory back to the model or, with free, to the backend.
	Close(free bool)
	// Writes returns a number that changes with every write to the weights.
	Writes() uint64
	// Copy copies the keys and values of n positions of the caches, from one on, to another.
	Copy(to, from, n int)
	// Fork copies the states of one sequence to another.
	Fork(to, from int)
	// Reserve takes the workspace of a pass of n rows.
	Reserve(n int)
	// Prefill runs a pass. The tokens of prompts, one after the other, are its first rows; a prompt
	// attends to itself, the other rows to their pages.
	Prefill(prompts []sequence.Seq, p *Pass) (hND compute.Tensor, err error)
	// Decode runs a pass whose rows attend to their pages. Passes of the same number of rows may be
	// recorded and replayed (Backend.Repeat).
	Decode(p *Pass) (hND compute.Tensor, err error)
}

// Pass is tokens that run through the blocks together, one a row. Prefill and Decode write each
// row's keys and values to the caches before it attends, and return the head's inputs [N,D], valid
// until the next pass.
type Pass struct {
	IDs   []int32 // [N] tokens
	Pos   []int32 // [N] their positions
	Slots []int32 // [N] positions of the caches for their keys and values
	// Pages are the cached positions that each row behind the prompts of Prefill attends to.
	Pages compute.Pages
	Runs  Runs
}

// Runs are the rows of a pass by sequence.
type Runs struct {
	Start []int32 // [S+1] first row of each run of one sequence's consecutive tokens
	From  []int32 // [S] the state before it: -1 at the sequence's beginning
	To    []int32 // [S] the state that the run leaves; -1: none
}

// end ends a run at the pass's last row.
func (p *Pass) end(from, to int) {
	r := &p.Runs
	r.Start = append(r.Start, int32(len(p.IDs)))
	r.From, r.To = append(r.From, int32(from)), append(r.To, int32(to))
}

// clear empties the pass, and keeps its memory.
func (p *Pass) clear() {
	p.IDs, p.Pos, p.Slots = p.IDs[:0], p.Pos[:0], p.Slots[:0]
	p.Pages.Table, p.Pages.Len = p.Pages.Table[:0], p.Pages.Len[:0]
	r := &p.Runs
	r.Start, r.From, r.To = append(r.Start[:0], 0), r.From[:0], r.To[:0]
}

// add appends a row.
func (p *Pass) add(id int32, pos int, slot int32) {
	p.IDs, p.Pos, p.Slots = append(p.IDs, id), append(p.Pos, int32(pos)), append(p.Slots, slot)
}

// read appends the first n positions of a page table, for a row that reads the cache.
func (p *Pass) read(table []int32, n int) {
	p.Pages.Table = append(p.Pages.Table, table[:pages.Count(n, p.Pages.PageTokens)])
	p.Pages.Len = append(p.Pages.Len, int32(n))
}
