package session

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"

	"gad/device"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/saved"
)

// Slots is the number of answers sampled at the same time unless Together is used.
const Slots = model.DefaultSlots

// Together returns the number of answers to sample at the same time, n to each of the prompts: on a
// GPU more than Slots, if half of the free memory has room for them.
func (m *Model) Together(prompts [][]int32, n, limit int, chunks model.Chunks) int {
	o := model.PlanOptions{Kind: model.LM, N: n, Prompts: len(prompts), MaxNew: limit,
		Chunks: chunks}
	for _, ids := range prompts {
		o.PromptTokens = max(o.PromptTokens, len(ids))
	}
	return model.Together(m.Backend, n*len(prompts), func(slots int) bool {
		o.Slots = slots
		p := m.Config().Plan(m.Backend, o)
		return p.Cache+p.Activations+p.Scratch <= m.Backend.Available()/2
	})
}

// Model is a model on a device, with its tokenizer.
type Model struct {
	Backend compute.Backend
	*model.Model
	Tokenizer *tokenizer.Tokenizer
}

// Close frees the model and closes its device.
func (m *Model) Close() { m.Model.Close(); m.Backend.Close() }

// ChatOptions is the flags about the chat template.
type ChatOptions = tokenizer.ChatOptions

// Source is a model as a command line names it, with the device to load it on.
type Source struct {
	Path    string // a folder or a GGUF file
	Adapter string // folder of LoRA adapters for its weights; "": none
	Quant   string // format of its weights in memory (model.Options.Quant)
	Chat    ChatOptions
	Talks   bool // its prompts are chats: it must have a chat template
	Device  device.Options
}

// Load opens a device and loads a model onto it.
func (s *Session) Load(from Source, kind model.Kind) (*Model, error) {
	part := "actor"
	if kind == model.Scorer {
		part = "critic"
	}
	if err := saved.CheckPart(s.FS, from.Path, part); err != nil {
		return nil, err
	}
	_, done := s.Console.Busy("loading "+from.Path, 0)
	defer done()
	be, err := OpenDevice(from.Device)
	if err != nil {
		return nil, err
	}
	m, err := Load(be, from, kind)
	if err != nil {
		be.Close()
	}
	return m, err
}

// Load loads a model onto an open device; it ignores from.Device.
func Load(be compute.Backend, from Source, kind model.Kind) (m *Model, err error) {
	m = &Model{Backend: be}
	var (
		wg     sync.WaitGroup
		tokErr error
	)
	if q := from.Quant; q != "" && q != model.Native && !model.Quantised(q) {
		return nil, fault.Usagef("--weights %s: must be %s, q8_0 or q4_0", q, model.Native)
	}
	weights, o := from.Path, model.Options{Kind: kind, Quant: from.Quant}
	if adapter := from.Adapter; adapter != "" {
		if !model.IsAdapter(adapter) {
			return nil, fault.Usagef("--adapter %s: is no folder of LoRA adapters: it has no %s",
				adapter, model.AdapterConfigName)
		}
		if model.IsAdapter(from.Path) {
			return nil, fault.Usagef("--adapter %s: %s is a folder of LoRA adapters itself: give one of them, or their base with --model", adapter, from.Path)
		}
		if o.Base, err = model.Load(be, from.Path,
			model.Options{Kind: model.LM, Quant: from.Quant}); err != nil {
			return nil, err
		}
		defer o.Base.Close() // the adapted model keeps the base's weights
		weights = adapter
	}
	read := func() { m.Tokenizer, tokErr = saved.ChatTokenizer(from.Path, from.Chat) }
	if from.Talks || from.Chat != (ChatOptions{}) { // a mistake fails before the weights are loaded
		if read(); tokErr == nil && from.Talks && m.Tokenizer.ChatTemplate() == "" {
			_, tokErr = m.Tokenizer.ChatPrompt(nil)
		}
		if tokErr != nil {
			return nil, tokErr
		}
	} else { // takes one core, while the weights take all
		wg.Go(read)
	}
	m.Model, err = model.Load(be, weights, o)
	wg.Wait()
	if tokErr != nil {
		if err == nil {
			m.Model.Close()
		}
		return nil, tokErr
	}
	if err != nil {
		return nil, err
	}
	if err := m.SetTokens(m.Tokenizer.Tokens()); err != nil {
		return nil, errors.Join(err, m.Model.Close())
	}
	return m, nil
}

// OpenDevice opens a device. Its errors are usage errors.
func OpenDevice(o device.Options) (compute.Backend, error) {
	if err := o.Validate(); err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	if o.Name != device.CUDA {
		free := device.FreeMemory()
		// only once: later, this process's own memory is not free
		if free > 0 && debug.SetMemoryLimit(-1) == math.MaxInt64 {
			// the collector works harder before the system runs out
			debug.SetMemoryLimit(free / 10 * 9)
		}
	}
	be, err := device.Open(o)
	if err != nil { // no GPU, or GAD_CPU names instructions that this CPU lacks
		return nil, fault.As(fault.ErrUsage, err)
	}
	return be, nil
}

// CheckLengths refuses prompts of rows that leave no room for an answer of limit tokens within
// most, the model's context (0: unlimited). flag is the flag of the limit, for the message.
func CheckLengths(command, flag string, prompts [][]int32, rows []int, limit, most int) error {
	longest := 0
	for i, ids := range prompts {
		if len(ids) > len(prompts[longest]) {
			longest = i
		}
	}
	if len(prompts) == 0 || most == 0 || len(prompts[longest])+limit <= most {
		return nil
	}
	n := len(prompts[longest])
	if n >= most {
		return fmt.Errorf("data: row %d: prompt has %d tokens, the model takes %d: drop the row",
			rows[longest], n, most)
	}
	return fault.Usagef("%s: row %d: prompt has %d tokens: with an answer of %d that is more than the %d of the model: give --%s %d", command, rows[longest], n, limit, most, flag, most-n)
}

// Digest returns a digest of everything in a model that its answers depend on: its files, and the
// files of its adapters or of their base.
func (s *Session) Digest(from Source) (digest string, err error) {
	_, done := s.Console.Busy("reading "+from.Path, 0)
	defer done()
	digest, err = modelDigest(s.FS, from.Path)
	base, err1 := model.BaseDir(from.Path)
	if other := cmp.Or(from.Adapter, base); other != from.Path && errors.Join(err, err1) == nil {
		var and string
		and, err = modelDigest(s.FS, other)
		digest += "+" + and
	}
	return digest, errors.Join(err, err1)
}

// modelDigest returns the SHA-256 of a model's files.
func modelDigest(fsys vfs.FS, dir string) (string, error) {
	var names []string
	info, err := fsys.Stat(dir)
	if err == nil && !info.IsDir() { // a GGUF file
		names, dir = []string{filepath.Base(dir)}, filepath.Dir(dir)
	} else {
		entries, err := fsys.ReadDir(dir)
		if err != nil {
			return "", fmt.Errorf("model: %w", err)
		}
		for _, e := range entries {
			if !e.IsDir() && slices.Contains(
				[]string{".json", ".safetensors", ".jinja", ".txt", ".model"},
				filepath.Ext(e.Name())) {
				names = append(names, e.Name())
			}
		}
	}
	sum := sha256.New()
	for _, name := range names {
		f, err := fsys.Open(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("model: %w", err)
		}
		info, err := f.Stat()
		if err == nil {
			fmt.Fprintf(sum, "%s %d\n", name, info.Size())
			_, err = io.Copy(sum, f)
		}
		f.Close()
		if err != nil {
			return "", fmt.Errorf("model: %s: %w", filepath.Join(dir, name), err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
