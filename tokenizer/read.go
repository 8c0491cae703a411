package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"gad/internal/folder"
	"gad/internal/gguf"
)

// Files of a tokenizer folder. All but the first may be absent.
const (
	fileTokenizer  = "tokenizer.json"
	fileConfig     = "tokenizer_config.json"
	fileSpecial    = "special_tokens_map.json"
	fileTemplate   = "chat_template.jinja"
	fileToolUse    = "additional_chat_templates/tool_use.jinja" // for chats with tools
	fileGeneration = "generation_config.json"
	fileModel      = "config.json" // read for its end tokens, not carried by Files
)

// fileLimits are the sizes, in bytes, above which a file is refused unread. The largest byte-level
// vocabularies in use take some 17 MB.
var fileLimits = map[string]int64{
	fileTokenizer:  128 << 20,
	fileConfig:     16 << 20,
	fileSpecial:    1 << 20,
	fileTemplate:   templateLimit,
	fileToolUse:    templateLimit,
	fileVariables:  1 << 20,
	fileGeneration: 1 << 20,
	fileModel:      16 << 20,
}

// Load reads the tokenizer in a folder: tokenizer.json, and if present tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja, generation_config.json and config.json. For a GGUF
// file it returns the tokenizer in its metadata. Every error names the file, the object and the
// rule that it breaks.
func Load(path string) (*Tokenizer, error) {
	read := readFolder
	if gguf.Is(path) {
		read = readGGUF
	}
	files, err := read(path)
	if err != nil {
		return nil, err
	}
	t, err := parse(files)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

// readFolder reads the files of a tokenizer folder.
func readFolder(dir string) (map[string][]byte, error) {
	root, err := folder.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w: give a Hugging Face model folder with tokenizer.json, or train a tokenizer (gad init)", err)
	}
	defer root.Close() // only read from
	files := map[string][]byte{}
	for name, limit := range fileLimits {
		data, err := root.ReadFile(name, limit)
		switch {
		case errors.Is(err, fs.ErrNotExist) && name != fileTokenizer:
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("tokenizer: %w: give a Hugging Face model folder with tokenizer.json, or train a tokenizer (gad init)", err)
		case err != nil:
			return nil, fmt.Errorf("tokenizer: %w", err)
		default:
			files[name] = data
		}
	}
	return files, nil
}

// object decodes a JSON object. Unlike encoding/json it distinguishes keys by case and refuses a
// repeated key.
func object(data []byte) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	err := pairs(data, func(d *json.Decoder, key string) error {
		if _, twice := out[key]; twice {
			return fmt.Errorf("key %q: appears twice: keep one of them", key)
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return err
		}
		out[key] = v
		return nil
	})
	return out, err
}

// pairs calls f for each key of a JSON object; f decodes the value.
func pairs(data []byte, f func(d *json.Decoder, key string) error) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if tok, err := d.Token(); err != nil {
		return badJSON(err)
	} else if tok != json.Delim('{') {
		return fmt.Errorf("not a JSON object: the file must contain { ... }")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return badJSON(err)
		}
		if err := f(d, key.(string)); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return badJSON(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("text after the JSON object: remove it")
	}
	return nil
}

func badJSON(err error) error {
	return fmt.Errorf("not JSON: %w: the file is damaged, fetch it again", err)
}

// component is a normalizer, pre-tokenizer, post-processor or decoder.
type component struct {
	Type           string            `json:"type"`
	Normalizers    []component       `json:"normalizers"`
	Pretokenizers  []component       `json:"pretokenizers"`
	Processors     []component       `json:"processors"`
	Decoders       []component       `json:"decoders"`
	Pattern        map[string]string `json:"pattern"`
	Behavior       string            `json:"behavior"`
	Invert         bool              `json:"invert"`
	AddPrefixSpace *bool             `json:"add_prefix_space"`
	UseRegex       *bool             `json:"use_regex"`
	Individual     bool              `json:"individual_digits"`
	Prepend        string            `json:"prepend"`
	Content        *string           `json:"content"`
	StripLeft      bool              `json:"strip_left"`
	StripRight     bool              `json:"strip_right"`
	Start          int               `json:"start"`
	Stop           int               `json:"stop"`
	Replacement    string            `json:"replacement"`
	PrependScheme  string            `json:"prepend_scheme"`
	Split          *bool             `json:"split"`
	Single         json.RawMessage   `json:"single"`
	SpecialTokens  map[string]struct {
		IDs []int32 `json:"ids"`
	} `json:"special_tokens"`
}

// parts returns the component as a list, with Sequence components flattened.
func (c *component) parts() []component {
	if c == nil {
		return nil
	}
	if c.Type != "Sequence" {
		return []component{*c}
	}
	var all []component
	for _, list := range [][]component{c.Normalizers, c.Pretokenizers, c.Processors, c.Decoders} {
		for i := range list {
			all = append(all, list[i].parts()...)
		}
	}
	return all
}

// readComponent parses a component of tokenizer.json; nil if absent.
func readComponent(top map[string]json.RawMessage, name string) (*component, error) {
	raw := top[name]
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	c := new(component)
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, fmt.Errorf("%s: %q: %w", fileTokenizer, name, err)
	}
	return c, nil
}

// parse returns the tokenizer in the files of a folder.
func parse(files map[string][]byte) (*Tokenizer, error) {
	t := &Tokenizer{files: map[string][]byte{}, special: map[int32]bool{}}
	t.model.cache = newWordCache()
	t.writes = sync.OnceValue(t.byPiece)
	t.tagged, t.headed = sync.OnceValue(t.tags), sync.OnceValue(t.probeHeader)
	t.thought = sync.OnceValue(t.probeThought)
	t.modelFile = files[fileModel]
	for name, data := range files {
		if name != fileModel {
			t.files[name] = data
		}
	}
	more, err := parseDeclared(files)
	if err != nil {
		return nil, err
	}
	t.named = more.named
	if err := t.parseTokenizer(files[fileTokenizer], more); err != nil {
		return nil, fmt.Errorf("%s: %w", fileTokenizer, err)
	}
	return t, t.parseConfigs(files)
}

// parseTokenizer reads tokenizer.json, and adds what it lacks of the declared tokens.
func (t *Tokenizer) parseTokenizer(data []byte, more declared) error {
	top, err := object(data)
	if err != nil {
		return err
	}
	if top["model"] == nil {
		return fmt.Errorf("%q: is missing: this is not a tokenizer.json", "model")
	}
	if raw := top["added_tokens"]; raw != nil {
		if err := json.Unmarshal(raw, &t.added); err != nil {
			return fmt.Errorf("%q: %w", "added_tokens", err)
		}
	}
	for _, part := range []struct {
		name string
		set  func(*component) error
	}{
		{"normalizer", t.setNormalizer},
		{"pre_tokenizer", t.setPreTokenizer}, // decides whether the model is byte-level
		{"model", func(*component) error { return t.parseModel(top["model"], more) }},
		{"post_processor", t.setPostProcessor},
		{"decoder", t.setDecoder},
	} {
		var c *component
		if part.name != "model" {
			var err error
			if c, err = readComponent(top, part.name); err != nil {
				return err
			}
		}
		if part.name == "pre_tokenizer" && more.tekken && c != nil && len(c.Pretokenizers) > 0 {
			c.Pretokenizers[0] = component{Type: "Split", Behavior: "Isolated",
				Pattern: map[string]string{"Regex": patternTekken}}
		}
		if err := part.set(c); err != nil {
			return fmt.Errorf("%q: %w", part.name, err)
		}
	}
	return t.setAdded()
}

const wayOut = "use a model with a BPE tokenizer, byte-level (GPT-2, Qwen2, Llama-3) or with byte_fallback (Llama-2, Mistral, Gemma)"

// parseModel reads the vocabulary and the merges.
func (t *Tokenizer) parseModel(data []byte, more declared) error {
	fields, err := object(data)
	if err != nil {
		return err
	}
	var m struct {
		Type    string
		Dropout *float64
		Prefix  *string
		Suffix  *string
		Bytes   bool
		Ignore  bool
		Unk     *string
		Fuse    bool
	}
	for key, to := range map[string]any{"type": &m.Type, "dropout": &m.Dropout,
		"continuing_subword_prefix": &m.Prefix,
		"end_of_word_suffix":        &m.Suffix, "byte_fallback": &m.Bytes,
		"ignore_merges": &m.Ignore,
		"unk_token":     &m.Unk, "fuse_unk": &m.Fuse} {
		if raw := fields[key]; raw != nil {
			if err := json.Unmarshal(raw, to); err != nil {
				return fmt.Errorf("%q: %w", key, err)
			}
		}
	}
	switch {
	case m.Type != "BPE" && !(m.Type == "" && fields["merges"] != nil):
		return fmt.Errorf("type %q: only BPE can be read: %s", m.Type, wayOut)
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("dropout %g: would make token ids random: set it to null", *m.Dropout)
	case m.Prefix != nil && *m.Prefix != "":
		return fmt.Errorf("continuing_subword_prefix %q: cannot be read: %s", *m.Prefix, wayOut)
	case m.Suffix != nil && *m.Suffix != "":
		return fmt.Errorf("end_of_word_suffix %q: cannot be read: %s", *m.Suffix, wayOut)
	}
	t.model.ignoreMerges = m.Ignore
	if err := t.parseVocab(fields["vocab"], more); err != nil {
		return fmt.Errorf("%q: %w", "vocab", err)
	}
	if err := t.setUnknown(m.Unk, m.Fuse, m.Bytes); err != nil {
		return err
	}
	if err := t.parseMerges(fields["merges"]); err != nil {
		return fmt.Errorf("%q: %w", "merges", err)
	}
	t.setCuts()
	return nil
}

// maxID returns the bound of an id, from which arrays are sized, for a file with so many entries:
// vocabularies have gaps, but none of billions.
func maxID(entries int) int64 { return 2*int64(entries) + 256 }

// parseVocab parses the map from token to id.
func (t *Tokenizer) parseVocab(data []byte, more declared) error {
	if data == nil {
		return fmt.Errorf("is missing: the file is damaged, fetch it again")
	}
	t.ids = map[string]int32{}
	size := 0
	err := pairs(data, func(d *json.Decoder, token string) error {
		var id int64
		if err := d.Decode(&id); err != nil {
			return fmt.Errorf("token %q: %w", token, err)
		}
		if _, twice := t.ids[token]; twice {
			return fmt.Errorf("token %q: appears twice: keep one of them", token)
		}
		// No file of n bytes holds n entries, so this cuts off only nonsense;
		// the sharper bound below needs the count.
		if id < 0 || id > maxID(len(data)) {
			return fmt.Errorf("token %q: id %d: outside 0..%d: the file is damaged", token, id,
				maxID(len(data)))
		}
		t.ids[token] = int32(id)
		size = max(size, int(id)+1)
		return nil
	})
	if err != nil {
		return err
	}
	missing, err := more.missing(t.ids, t.added)
	if err != nil {
		return err
	}
	t.added = append(t.added, missing...)
	if limit := maxID(len(t.ids) + len(t.added)); int64(size) > limit+1 {
		return fmt.Errorf(
			"highest id %d: over %d, which is twice the number of tokens: the file is damaged",
			size-1, limit)
	}
	for _, a := range t.added {
		if a == nil || a.Content == "" {
			return fmt.Errorf("added token without content: remove it from added_tokens")
		}
		if limit := maxID(len(t.ids) + len(t.added)); a.ID < 0 || int64(a.ID) > limit {
			return fmt.Errorf("added token %q: id %d: outside 0..%d: the file is damaged",
				a.Content, a.ID, limit)
		}
		size = max(size, int(a.ID)+1)
	}
	t.pieces = make([][]byte, size)
	if t.model.text {
		t.tokens = make([]string, size)
		t.model.charID = map[rune]int32{}
	}
	t.model.vocab = make(map[string]int32, len(t.ids))
	for i := range t.model.byteID {
		t.model.byteID[i] = -1
	}
	for token, id := range t.ids {
		if t.pieces[id] != nil {
			return fmt.Errorf("token %q: id %d: another token has it: the file is damaged", token,
				id)
		}
		raw, ok := []byte(token), true
		if t.model.text {
			t.tokens[id] = token
			if r, n := utf8.DecodeRuneInString(token); n == len(token) && n > 1 {
				t.model.charID[r] = id
			}
		} else if raw, ok = rawBytes(token); !ok {
			// Outside the byte alphabet: no text becomes it, but it decodes.
			t.pieces[id] = []byte(token)
			continue
		}
		t.pieces[id] = raw
		t.model.vocab[string(raw)] = id
		t.model.longest = max(t.model.longest, len(raw))
		if len(raw) == 1 {
			t.model.byteID[raw[0]] = id
		}
	}
	return nil
}

// setUnknown sets the treatment of bytes or characters that no token of the vocabulary stands for.
func (t *Tokenizer) setUnknown(unk *string, fuse, bytes bool) error {
	m := &t.model
	m.unk, m.fuseUnk = -1, fuse
	m.gaps = m.text || slices.Contains(m.byteID[:], -1)
	m.whole = !m.gaps
	if bytes {
		m.fallback = new([256]int32)
		for b := range m.fallback {
			m.fallback[b] = -1
			if id, ok := t.ids[fmt.Sprintf("<0x%02X>", b)]; ok {
				m.fallback[b] = id
			}
		}
		m.whole = m.whole || m.text && !slices.Contains(m.fallback[:], -1)
	}
	if unk != nil && !m.whole {
		id, ok := t.ids[*unk]
		if !ok {
			return fmt.Errorf("%q: %q is not in the vocabulary, and some texts need it: add it to vocab or set it to null", "unk_token", *unk)
		}
		m.unk = id
	}
	return nil
}

// parseMerges parses the merges, strings "a b" or pairs ["a", "b"].
func (t *Tokenizer) parseMerges(data []byte) error {
	var list []json.RawMessage
	if data == nil {
		return fmt.Errorf("is missing: the file is damaged, fetch it again")
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	t.model.merges = make(map[uint64]merge, len(list))
	for rank, raw := range list {
		var flat string
		var two []string
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &flat); err != nil {
				return err
			}
			two = strings.Split(flat, " ")
		} else if err := json.Unmarshal(raw, &two); err != nil {
			return fmt.Errorf("merge %d: %w", rank, err)
		}
		if len(two) != 2 {
			return fmt.Errorf("merge %d %s: must name two tokens: the file is damaged", rank,
				clip(string(raw)))
		}
		left, ok1 := t.ids[two[0]]
		right, ok2 := t.ids[two[1]]
		joined, ok3 := t.ids[two[0]+two[1]]
		if !ok1 || !ok2 || !ok3 {
			return fmt.Errorf(
				"merge %d %s: a part or the whole is not in the vocabulary: the file is damaged",
				rank, clip(string(raw)))
		}
		t.model.merges[pairKey(left, right)] = merge{int32(rank), joined}
	}
	return nil
}

// setCuts finds the positions at which words may be cut: the merges must be over characters, no
// character may be left out between two that could join, and no merge may contain a byte token or
// unk, which stand for other text than their own.
func (t *Tokenizer) setCuts() {
	m := &t.model
	if !m.text || m.unk < 0 && !m.whole {
		return
	}
	other := map[int32]bool{t.model.unk: true}
	if t.model.fallback != nil {
		for _, id := range t.model.fallback {
			other[id] = true
		}
	}
	joined := make([]string, 0, len(t.model.merges))
	for key, m := range t.model.merges {
		if other[int32(key>>32)] || other[int32(uint32(key))] {
			return
		}
		joined = append(joined, t.tokens[m.id])
	}
	t.model.cuts = newCuts(&t.model, '▁', joined)
}

// clip returns s cut after 80 bytes, for an error message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// refuse returns the error for a component of an unknown type.
func refuse(kind string, c component) error {
	return fmt.Errorf("type %q: this %s cannot be read: %s", c.Type, kind, wayOut)
}

// setPostProcessor parses the post-processor.
func (t *Tokenizer) setPostProcessor(c *component) error {
	for _, p := range c.parts() {
		switch p.Type {
		case "ByteLevel": // moves offsets only
		case "TemplateProcessing":
			if t.before != nil || t.behind != nil {
				return fmt.Errorf("two TemplateProcessing steps: cannot be read: keep one")
			}
			if err := t.setTemplate(p); err != nil {
				return err
			}
		default:
			return refuse("post-processor", p)
		}
	}
	return nil
}

// setTemplate parses the tokens that a TemplateProcessing puts around a single sequence.
func (t *Tokenizer) setTemplate(p component) error {
	var single []map[string]struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(p.Single, &single); err != nil {
		return fmt.Errorf("single: %w", err)
	}
	texts := 0
	for _, e := range single {
		if s, ok := e["SpecialToken"]; ok {
			known, ok := p.SpecialTokens[s.ID]
			if !ok {
				return fmt.Errorf(
					"single: token %q is not among its special_tokens: the file is damaged", s.ID)
			}
			for _, id := range known.IDs {
				if id < 0 || int(id) >= len(t.pieces) {
					return fmt.Errorf(
						"special token %q: id %d: outside the vocabulary: the file is damaged",
						s.ID, id)
				}
			}
			if texts == 0 {
				t.before = append(t.before, known.IDs...)
			} else {
				t.behind = append(t.behind, known.IDs...)
			}
		} else {
			texts++
		}
	}
	if texts != 1 {
		return fmt.Errorf("single: contains the text %d times: must be once", texts)
	}
	return nil
}

// setAdded registers the added tokens.
func (t *Tokenizer) setAdded() error {
	var raw, normalized []matchEntry
	for _, a := range t.added {
		if id, ok := t.ids[a.Content]; ok && id != a.ID {
			return fmt.Errorf(
				"added token %q: id %d, but the vocabulary says %d: the file is damaged", a.Content,
				a.ID, id)
		} else if !ok && t.pieces[a.ID] != nil {
			return fmt.Errorf("added token %q: id %d: another token has it: the file is damaged",
				a.Content, a.ID)
		}
		t.ids[a.Content] = a.ID
		content := a.Content
		if a.Normalized {
			if text := t.normalize(content); text != "" {
				normalized = append(normalized, matchEntry{text, a})
				content = text // the reference decodes it so, too
			}
		} else {
			raw = append(raw, matchEntry{content, a})
		}
		// The reference's decoder takes a token whose letters are all in the
		// byte alphabet for encoded bytes, an added one too.
		if t.model.text {
			t.tokens[a.ID], t.pieces[a.ID] = content, t.piece(content)
		} else if b, ok := rawBytes(content); ok {
			t.pieces[a.ID] = b
		} else {
			t.pieces[a.ID] = []byte(content)
		}
		if a.Special {
			t.special[a.ID] = true
		}
	}
	t.guardMerges()
	t.raw, t.normalized = newMatcher(raw), newMatcher(normalized)
	return nil
}

// guardMerges removes ways in which plain text could become a control token: a merge, or a whole
// word with ignore_merges. The reference leaves such a file unchanged; no model's own file has one,
// and EncodeText and ChatPrompt must hold for every file.
func (t *Tokenizer) guardMerges() {
	if len(t.special) == 0 {
		return
	}
	for key, m := range t.model.merges {
		if t.special[m.id] {
			delete(t.model.merges, key)
		}
	}
	for _, a := range t.added {
		if !a.Special {
			continue
		}
		name := a.Content
		if raw, ok := rawBytes(name); ok && !t.model.text {
			name = string(raw)
		}
		if id, ok := t.model.vocab[name]; ok && id == a.ID {
			delete(t.model.vocab, name)
		}
	}
}
