package tokenizer

import (
	"bytes"
	"container/heap"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The control tokens of the ChatML layout.
const (
	endOfText = "<|endoftext|>"
	turnStart = "<|im_start|>"
	turnEnd   = "<|im_end|>"
)

// ChatML is the default chat template of Train.
const ChatML = `{%- for message in messages %}` +
	`{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}` +
	`{%- endfor %}` +
	`{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}`

// TrainOptions are the settings of Train.
type TrainOptions struct {
	// VocabSize is the number of tokens to reach, control tokens included; at least 256 +
	// len(Special). A corpus too small or too uniform gives fewer.
	VocabSize int
	// Special are the control tokens. The first is the padding token and ends a
	// text. Default <|endoftext|>, <|im_start|>, <|im_end|>.
	Special []string
	// EndOfTurn is the control token that ends an answer. Default <|im_end|>
	// if it is among Special, else the first of them.
	EndOfTurn string
	// ChatTemplate is a Jinja template. Default ChatML, which needs the default
	// control tokens.
	ChatTemplate string
}

// Validate sets defaults and checks the options.
func (o *TrainOptions) Validate() error {
	if len(o.Special) == 0 {
		o.Special = []string{endOfText, turnStart, turnEnd}
	}
	seen := map[string]bool{}
	for _, s := range o.Special {
		if utf8.RuneCountInString(s) < 2 || !utf8.ValidString(s) || seen[s] {
			return fmt.Errorf("tokenizer: train: special token %q: must be valid text of two characters or more, and appear once: choose another", s)
		}
		seen[s] = true
	}
	if o.EndOfTurn == "" {
		o.EndOfTurn = o.Special[0]
		if seen[turnEnd] {
			o.EndOfTurn = turnEnd
		}
	}
	if !seen[o.EndOfTurn] {
		return fmt.Errorf(
			"tokenizer: train: end of turn %q: is not among the special tokens %q: add it",
			o.EndOfTurn, o.Special)
	}
	if o.ChatTemplate == "" {
		if !seen[turnStart] || !seen[turnEnd] {
			return fmt.Errorf("tokenizer: train: special tokens %q: the default chat template needs %s and %s: add them or give a chat template", o.Special, turnStart, turnEnd)
		}
		o.ChatTemplate = ChatML
	}
	if low := 256 + len(o.Special); o.VocabSize < low {
		return fmt.Errorf("tokenizer: train: vocabulary size %d: under %d, the bytes and the special tokens: raise it", o.VocabSize, low)
	}
	return nil
}

const (
	trainBlock   = 1 << 20 // bytes of corpus cut into words at a time
	trainWordLen = 256     // bytes of the longest word learned from: longer ones are cut
)

// trainLine is the most bytes that Train buffers while it waits for the end of a line. A longer
// line is cut between characters. It is a variable for tests.
var trainLine = 16 << 20

// Train learns a byte-level BPE (Sennrich et al., arXiv 1508.07909) from a
// text in UTF-8, with the pre-tokenizer and normalizer (NFC) of Qwen2. Ids 0 to
// 255 are the bytes, then come the merges in the order learned, then the
// control tokens. Of equally frequent pairs the one with the smaller left id,
// then the smaller right id, is joined first, so the result depends on the
// corpus alone. A pair seen once is not joined.
//
// Files of the result is a complete Hugging Face tokenizer folder.
func Train(corpus io.Reader, opt TrainOptions) (*Tokenizer, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	counts, err := countWords(corpus, opt.Special)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: train: reading the corpus: %w", err)
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("tokenizer: train: the corpus is empty: give a text")
	}
	names, merges := learn(counts, opt.VocabSize-len(opt.Special))
	files, err := folderFiles(names, merges, opt)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: train: %w", err)
	}
	t, err := parse(files)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: train: %w", err)
	}
	if t.EndOfTurn() != t.ids[opt.EndOfTurn] {
		return nil, fmt.Errorf("tokenizer: train: chat template: writes %q after an answer, not %q: give the end of turn that the template writes", t.pieces[t.EndOfTurn()], opt.EndOfTurn)
	}
	return t, nil
}

// countWords cuts the corpus into pre-tokens and returns their counts. Control tokens written in it
// are skipped.
func countWords(corpus io.Reader, special []string) (map[string]int64, error) {
	var entries []matchEntry
	for _, s := range special {
		entries = append(entries, matchEntry{s, &addedToken{Content: s, Special: true}})
	}
	controls := newMatcher(entries)
	counts := map[string]int64{}
	cut, _ := newSplitter(patternQwen2)
	add := func(block string) {
		controls.split(validUTF8(block), false, func(s string) {
			cut(norm.NFC.String(s), func(w string) {
				for len(w) > trainWordLen {
					n := trainWordLen
					for !utf8.RuneStart(w[n]) {
						n--
					}
					counts[w[:n]]++
					w = w[n:]
				}
				if _, ok := counts[w]; !ok {
					w = strings.Clone(w) // not the whole block
				}
				counts[w]++
			})
		}, func(*addedToken) {})
	}
	var held []byte
	buf := make([]byte, trainBlock)
	for {
		n, err := io.ReadFull(corpus, buf)
		held = append(held, buf[:n]...)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			add(string(held))
			return counts, nil
		}
		if err != nil {
			return nil, err
		}
		// No pre-token reaches across a newline that is followed by ink, so a
		// cut there changes nothing.
		at := 0
		for i := len(held) - 1; i > 0; i-- {
			if held[i-1] == '\n' && held[i] > ' ' && held[i] < utf8.RuneSelf {
				at = i
				break
			}
		}
		if at == 0 && len(held) > trainLine {
			for at = len(held); at > len(held)-utf8.UTFMax && !utf8.RuneStart(held[at-1]); {
				at--
			}
			at--
		}
		if at > 0 {
			add(string(held[:at]))
			held = append(held[:0], held[at:]...)
		}
	}
}

// pairCount is a pair of ids with its count at the time it was queued.
type pairCount struct {
	left, right int32
	n           int64
}

type pairQueue []pairCount

func (q pairQueue) Len() int { return len(q) }
func (q pairQueue) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.n != b.n {
		return a.n > b.n
	}
	if a.left != b.left {
		return a.left < b.left
	}
	return a.right < b.right
}
func (q pairQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *pairQueue) Push(x any)   { *q = append(*q, x.(pairCount)) }
func (q *pairQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// learn returns the tokens in order of id, as raw bytes, and the merges by rank. It maintains the
// count of every pair and the words with it; the queue is lazy: a pair whose count has changed is
// queued again.
func learn(counts map[string]int64, size int) (names []string, merges [][2]int32) {
	texts := make([]string, 0, len(counts))
	for w := range counts {
		texts = append(texts, w)
	}
	sort.Strings(texts)
	// Ids of single bytes go by their letter in the byte alphabet, as is usual.
	var byteIDs [256]int32
	order := make([]int, 256)
	for b := range order {
		order[b] = b
	}
	slices.SortFunc(order, func(a, b int) int { return int(byteToRune[a]) - int(byteToRune[b]) })
	for id, b := range order {
		byteIDs[b] = int32(id)
		names = append(names, string([]byte{byte(b)}))
	}
	words := make([][]int32, len(texts))
	freq := make([]int64, len(texts))
	count := map[uint64]int64{}
	where := map[uint64][]int32{} // words that hold or held the pair, rising, perhaps twice
	for wi, w := range texts {
		freq[wi] = counts[w]
		ids := make([]int32, len(w))
		for i := range ids {
			ids[i] = byteIDs[w[i]]
		}
		words[wi] = ids
		for i := 0; i+1 < len(ids); i++ {
			p := pairKey(ids[i], ids[i+1])
			count[p] += freq[wi]
			where[p] = append(where[p], int32(wi))
		}
	}
	queue := make(pairQueue, 0, len(count))
	for p, n := range count {
		queue = append(queue, pairCount{int32(p >> 32), int32(uint32(p)), n})
	}
	heap.Init(&queue)
	for len(names) < size && queue.Len() > 0 {
		top := heap.Pop(&queue).(pairCount)
		p := pairKey(top.left, top.right)
		if n := count[p]; n != top.n {
			if n > 0 {
				heap.Push(&queue, pairCount{top.left, top.right, n})
			}
			continue
		}
		if top.n < 2 {
			break
		}
		id := int32(len(names))
		merges = append(merges, [2]int32{top.left, top.right})
		names = append(names, names[top.left]+names[top.right])
		fresh := map[uint64]bool{}
		last := int32(-1)
		for _, wi := range where[p] {
			if wi == last {
				continue
			}
			last = wi
			ids, n := words[wi], freq[wi]
			for i := 0; i+1 < len(ids); i++ {
				count[pairKey(ids[i], ids[i+1])] -= n
			}
			out := ids[:0]
			for i := 0; i < len(ids); i++ {
				if i+1 < len(ids) && ids[i] == top.left && ids[i+1] == top.right {
					out = append(out, id)
					i++
				} else {
					out = append(out, ids[i])
				}
			}
			words[wi] = out
			for i := 0; i+1 < len(out); i++ {
				q := pairKey(out[i], out[i+1])
				count[q] += n
				if out[i] == id || out[i+1] == id {
					fresh[q] = true
					where[q] = append(where[q], wi)
				}
			}
		}
		delete(where, p)
		delete(count, p)
		for q := range fresh {
			if count[q] > 0 {
				heap.Push(&queue, pairCount{int32(q >> 32), int32(uint32(q)), count[q]})
			}
		}
	}
	return names, merges
}

// folderFiles returns the files of a trained tokenizer. Only maps with sorted keys go through
// encoding/json, and the vocabulary is written in order of id.
func folderFiles(names []string, merges [][2]int32, opt TrainOptions) (map[string][]byte, error) {
	special := map[string]int32{}
	for i, s := range opt.Special {
		special[s] = int32(len(names) + i)
	}
	var b strings.Builder
	b.WriteString("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [")
	for i, s := range opt.Special {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n    {\"id\": %d, \"content\": %s, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}", special[s], quote(s))
	}
	fmt.Fprintf(&b, "\n  ],\n  \"normalizer\": {\"type\": \"NFC\"},\n  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"+
		"    {\"type\": \"Split\", \"pattern\": {\"Regex\": %s}, \"behavior\": \"Isolated\", \"invert\": false},\n"+
		"    {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false}\n  ]},\n", quote(patternQwen2))
	b.WriteString("  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false},\n" +
		"  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false},\n" +
		"  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n    \"continuing_subword_prefix\": \"\",\n" +
		"    \"end_of_word_suffix\": \"\",\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {")
	for id, name := range names {
		if id > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n      %s: %d", quote(alphabetText(name)), id)
	}
	b.WriteString("\n    },\n    \"merges\": [")
	for i, m := range merges {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n      [%s, %s]", quote(alphabetText(names[m[0]])),
			quote(alphabetText(names[m[1]])))
	}
	b.WriteString("\n    ]\n  }\n}\n")

	decoder := map[string]any{}
	for s, id := range special {
		decoder[fmt.Sprint(id)] = map[string]any{"content": s, "lstrip": false, "normalized": false,
			"rstrip": false, "single_word": false, "special": true}
	}
	ends := []int32{special[opt.EndOfTurn]}
	if first := special[opt.Special[0]]; first != ends[0] {
		ends = append(ends, first)
	}
	files := map[string][]byte{fileTokenizer: []byte(b.String())}
	for name, v := range map[string]any{
		fileConfig: map[string]any{
			"add_bos_token": false, "add_prefix_space": false, "added_tokens_decoder": decoder,
			"additional_special_tokens": opt.Special, "bos_token": nil,
			"chat_template":                opt.ChatTemplate,
			"clean_up_tokenization_spaces": false, "eos_token": opt.EndOfTurn, "errors": "replace",
			"model_max_length": 1 << 30, "pad_token": opt.Special[0], "split_special_tokens": false,
			"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": nil,
		},
		fileSpecial: map[string]any{"additional_special_tokens": opt.Special,
			"eos_token": opt.EndOfTurn,
			"pad_token": opt.Special[0]},
		fileGeneration: map[string]any{"eos_token_id": ends,
			"pad_token_id": special[opt.Special[0]]},
	} {
		out, err := indentedJSON(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		files[name] = out
	}
	return files, nil
}

// quote returns a string in JSON without HTML escapes.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// indentedJSON returns v in JSON, indented, without HTML escapes.
func indentedJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}
