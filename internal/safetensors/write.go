package safetensors

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
	"unicode/utf8"
)

// Source is a tensor that Write writes.
type Source struct {
	Name  string
	DType DType
	Shape []int
	// Write writes the tensor's bytes, little-endian, row-major: exactly Size
	// bytes. It is called once.
	Write func(w io.Writer) error
}

// Size returns the bytes of the tensor, computed from type and shape.
func (s Source) Size() (int64, error) {
	if s.DType.Size() == 0 {
		return 0, fmt.Errorf("safetensors: tensor %q: dtype %q is not known", s.Name,
			string(s.DType))
	}
	if len(s.Shape) > maxRank {
		return 0, fmt.Errorf("safetensors: tensor %q: %d dimensions: the most is %d", s.Name,
			len(s.Shape), maxRank)
	}
	n, err := size(s.DType, s.Shape)
	if err != nil {
		return 0, fmt.Errorf("safetensors: tensor %q: %w", s.Name, err)
	}
	return n, nil
}

// Write writes one file to w, each tensor streamed from its Source. Tensors are sorted as the
// reference implementation sorts them (wide types first, so that every tensor is aligned, then by
// name): equal tensors give equal bytes in any order of ts. meta may be nil.
func Write(w io.Writer, ts []Source, meta map[string]string) error {
	order := append([]Source(nil), ts...)
	sort.SliceStable(order, func(i, j int) bool {
		if a, b := order[i].DType.rank(), order[j].DType.rank(); a != b {
			return a > b
		}
		return order[i].Name < order[j].Name
	})
	head, err := encodeHeader(order, meta)
	if err != nil {
		return err
	}
	buf := bufio.NewWriterSize(w, 1<<18)
	if _, err := buf.Write(head); err != nil {
		return fmt.Errorf("safetensors: header: %w", err)
	}
	for _, s := range order {
		n, err := s.Size()
		if err != nil {
			return err
		}
		exact := &exactWriter{w: buf, left: n}
		err = s.Write(exact)
		if err == nil && exact.left != 0 {
			err = fmt.Errorf("%d of %d bytes written", n-exact.left, n)
		}
		if err != nil {
			return fmt.Errorf("safetensors: tensor %q: %w", s.Name, err)
		}
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

// exactWriter returns an error for a write beyond its count of bytes.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, fmt.Errorf("%d bytes more than type and shape say", int64(len(p))-e.left)
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}

// encodeHeader returns the header of a file with these tensors in this order, with its 8 bytes of
// length.
func encodeHeader(order []Source, meta map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	if len(meta) > 0 {
		if len(meta) > maxMetadata {
			return nil, fmt.Errorf("safetensors: __metadata__: %d entries: the most is %d",
				len(meta), maxMetadata)
		}
		keys := make([]string, 0, len(meta))
		for k := range meta {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		b.WriteString(`"__metadata__":{`)
		for i, k := range keys {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := cmp.Or(quote(&b, k, ":"), quote(&b, meta[k], "")); err != nil {
				return nil, fmt.Errorf("safetensors: __metadata__: %q: %w", k, err)
			}
		}
		b.WriteByte('}')
	}
	seen := make(map[string]bool, len(order))
	at := int64(0)
	for _, s := range order {
		if s.Name == "__metadata__" || seen[s.Name] {
			return nil, fmt.Errorf("safetensors: tensor %q: the name is taken", s.Name)
		}
		seen[s.Name] = true
		n, err := s.Size()
		if err != nil {
			return nil, err
		}
		if n > math.MaxInt64-at {
			return nil, fmt.Errorf("safetensors: tensor %q: the file's size overflows", s.Name)
		}
		if b.Len() > 9 {
			b.WriteByte(',')
		}
		if err := quote(&b, s.Name, ":"); err != nil {
			return nil, fmt.Errorf("safetensors: tensor %q: %w", s.Name, err)
		}
		fmt.Fprintf(&b, `{"dtype":"%s","shape":[`, s.DType)
		for i, d := range s.Shape {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%d", d)
		}
		fmt.Fprintf(&b, `],"data_offsets":[%d,%d]}`, at, at+n)
		at += n
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 { // the data starts aligned
		b.WriteByte(' ')
	}
	if b.Len()-8 > maxHeader {
		return nil, fmt.Errorf("safetensors: header: %d bytes: the most is %d", b.Len()-8,
			maxHeader)
	}
	head := b.Bytes()
	binary.LittleEndian.PutUint64(head, uint64(len(head)-8))
	return head, nil
}

// quote appends s as a JSON string with no more escapes than JSON needs, then after.
func quote(b *bytes.Buffer, s, after string) error {
	if !utf8.ValidString(s) {
		return errors.New("not valid UTF-8")
	}
	const short, letter = "\"\\\b\f\n\r\t", `"\bfnrt`
	b.WriteByte('"')
	for i := range len(s) {
		if k := strings.IndexByte(short, s[i]); k >= 0 {
			b.WriteByte('\\')
			b.WriteByte(letter[k])
		} else if s[i] < ' ' {
			fmt.Fprintf(b, `\u%04x`, s[i])
		} else {
			b.WriteByte(s[i])
		}
	}
	b.WriteByte('"')
	b.WriteString(after)
	return nil
}

// WriteFolder writes the weights of a Hugging Face folder through create: one
// model.safetensors if the tensors' bytes fit maxShardBytes (0 or less: they
// always do), else shards model-00001-of-0000N.safetensors, filled in the order
// of ts, and model.safetensors.index.json last. A tensor larger than
// maxShardBytes has a shard of its own. The metadata gets "format": "pt", without
// which transformers refuses the file, unless meta says otherwise.
func WriteFolder(create func(name string) (io.WriteCloser, error), ts []Source, maxShardBytes int64,
	meta map[string]string) error {
	full := map[string]string{"format": "pt"}
	for k, v := range meta {
		full[k] = v
	}
	var shards [][]Source
	var filled, total int64
	for _, s := range ts {
		n, err := s.Size()
		if err != nil {
			return err
		}
		if n > math.MaxInt64-total {
			return fmt.Errorf("safetensors: tensor %q: the model's size overflows", s.Name)
		}
		if len(shards) == 0 || maxShardBytes > 0 && filled > 0 && n > maxShardBytes-filled {
			shards, filled = append(shards, nil), 0
		}
		last := len(shards) - 1
		shards[last] = append(shards[last], s)
		filled += n
		total += n
	}
	if len(shards) <= 1 {
		return writeOne(create, SingleName, func(w io.Writer) error { return Write(w, ts, full) })
	}
	index := struct {
		Metadata struct {
			TotalSize int64 `json:"total_size"`
		} `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}{WeightMap: make(map[string]string, len(ts))}
	index.Metadata.TotalSize = total
	names := make([]string, len(shards))
	for i, shard := range shards {
		names[i] = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		for _, s := range shard {
			if _, dup := index.WeightMap[s.Name]; dup {
				return fmt.Errorf("safetensors: tensor %q: the name is taken", s.Name)
			}
			index.WeightMap[s.Name] = names[i]
		}
	}
	for i, shard := range shards {
		if err := writeOne(create, names[i],
			func(w io.Writer) error { return Write(w, shard, full) }); err != nil {
			return err
		}
	}
	return writeOne(create, IndexName, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(index)
	})
}

// writeOne creates a file, fills it and closes it.
func writeOne(create func(name string) (io.WriteCloser, error), name string,
	fill func(w io.Writer) error) error {
	f, err := create(name)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", name, err)
	}
	if err := cmp.Or(fill(f), f.Close()); err != nil {
		return fmt.Errorf("safetensors: %s: %w", name, err)
	}
	return nil
}
