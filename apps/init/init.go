// Package create implements gad init: it writes new model folders, with random weights and a
// tokenizer trained on a text, or with some layers of another model. Go has no package
// named init.
package create

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"gad/apps/session"
	"gad/device"
	"gad/internal/fault"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/export"
	"gad/trainer/saved"
)

// maxCorpusBytes is the largest part of a text that a tokenizer is trained on.
const maxCorpusBytes = 1 << 30

// Fresh writes a model folder with the architecture in the file config, random weights of a seed,
// and a tokenizer trained on the text in the file corpus.
func Fresh(s *session.Session, config, corpus, output string, seed uint64) error {
	cfg, err := model.ReadConfig(config)
	if err != nil {
		return err
	}
	f, err := os.Open(corpus)
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	defer f.Close()
	_, done := s.Console.Busy("training the tokenizer", 0)
	tok, err := tokenizer.Train(&utf8Reader{r: io.LimitReader(f, maxCorpusBytes), name: corpus},
		tokenizer.TrainOptions{VocabSize: cfg.Vocab})
	done()
	if err != nil {
		return err
	}
	return random(s, cfg, tok, output, seed)
}

// WithTokenizer writes a model folder with the architecture in the file config, random weights of a
// seed, and the tokenizer of another model: a student with its teacher's tokens.
func WithTokenizer(s *session.Session, config, from, output string, seed uint64) error {
	cfg, err := model.ReadConfig(config)
	if err != nil {
		return err
	}
	if err := saved.CheckModel(s.FS, from); err != nil {
		return err
	}
	tok, err := saved.Tokenizer(from)
	if err != nil {
		return err
	}
	if n := tok.Size(); cfg.Vocab < n {
		return fmt.Errorf("init: %s: vocab_size %d, and the tokenizer of %s has %d tokens: set it to %d or more", config, cfg.Vocab, from, n, n)
	}
	return random(s, cfg, tok, output, seed)
}

// random writes a model folder with random weights of a seed.
func random(s *session.Session, cfg model.Config, tok *tokenizer.Tokenizer, output string,
	seed uint64) error {
	be, err := session.OpenDevice(device.Options{})
	if err != nil {
		return err
	}
	defer be.Close()
	if cfg, err = WithTokens(cfg, tok); err != nil {
		return err
	}
	_, done := s.Console.Busy("drawing and writing weights", 0)
	defer done()
	m, err := model.New(be, cfg, model.Options{Kind: model.LM, Seed: seed})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := export.WriteFolder(s.FS, output, m, tok, "float32"); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "%s: %s with %d parameters, tokenizer of %d tokens\n", output,
		cfg.Architecture, cfg.ParamCount(model.LM), tok.Size())
	return nil
}

// Part writes a model folder of some layers of another model, such as "0,1,5-9", with their weights
// bit for bit, and its tokenizer.
func Part(s *session.Session, from, keep, output string) error {
	if err := saved.CheckModel(s.FS, from); err != nil {
		return err
	}
	if model.IsAdapter(from) {
		return fault.Usagef("init: --from %s: is a LoRA adapter: merge it into its base first (gad export --merge), and give that folder", from)
	}
	whole, err := model.ReadConfig(from)
	if err != nil {
		return err
	}
	layers, err := model.ParseLayers(keep, whole.Layers)
	if err != nil {
		return fault.Usagef("init: --keep-layers %v", err)
	}
	if err := (session.Output{Command: "init", Path: output}).CheckAbsent(s.FS); err != nil {
		return err
	}
	be, err := session.OpenDevice(device.Options{})
	if err != nil {
		return err
	}
	defer be.Close()
	tok, err := saved.Tokenizer(from)
	if err != nil {
		return err
	}
	_, done := s.Console.Busy("reading and writing weights", 0)
	m, err := model.Load(be, from, model.Options{Kind: model.LM, Layers: layers})
	if err != nil {
		done()
		return err
	}
	defer m.Close()
	err = export.WriteFolder(s.FS, output, m, tok, "")
	done()
	if err != nil {
		return err
	}
	cfg := m.Config()
	fmt.Fprintf(s.Out,
		"%s: %s with %d parameters, %d of the %d layers of %s, tokenizer of %d tokens\n", output,
		cfg.Architecture, cfg.ParamCount(model.LM),
		cfg.Layers, whole.Layers, from, tok.Size())
	return nil
}

// utf8Reader refuses text that is not UTF-8: a tokenizer trained on Latin-1 would fit no other
// text.
type utf8Reader struct {
	r    io.Reader
	name string
	at   int64  // offset of part in the file
	part []byte // incomplete character at the end of the last Read
}

// Read reads text, and fails at the first byte that is not UTF-8.
func (u *utf8Reader) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	text := append(u.part, p[:n]...)
	for len(text) > 0 && (utf8.FullRune(text) || err == io.EOF) {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			return 0, fmt.Errorf("%s: byte %d is not UTF-8: convert it first, such as with: iconv -f latin1 -t utf-8", u.name, u.at)
		}
		text, u.at = text[size:], u.at+int64(size)
	}
	u.part = bytes.Clone(text)
	return n, err
}

// WithTokens returns the configuration of a new model with the tokenizer's control tokens, where
// other programs expect them in config.json.
func WithTokens(c model.Config, tok *tokenizer.Tokenizer) (model.Config, error) {
	c, err := c.With("eos_token_id", tok.EndOfTurn())
	if err != nil {
		return c, err
	}
	return c.With("pad_token_id", tok.Pad())
}
