package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"gad/internal/gguf"
)

// readGGUF returns the files of a tokenizer folder from a GGUF file's metadata.
func readGGUF(path string) (map[string][]byte, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	defer f.Close() // only read from
	g, err := ggmlOf(f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	files, err := FromGGML(g)
	if err != nil {
		// without its own "tokenizer: "
		return nil, fmt.Errorf("tokenizer: %s: %w", path, cmp.Or(errors.Unwrap(err), err))
	}
	return files, nil
}

// ggmlOf reads the keys tokenizer.*. Keys that the file lacks have the values of NewGGML.
func ggmlOf(f *gguf.Reader) (*GGML, error) {
	var errs []error
	text := func(key string, to *string) {
		if v, has, err := f.Text("tokenizer." + key); err != nil {
			errs = append(errs, err)
		} else if has {
			*to = v
		}
	}
	var model, pre string
	text("ggml.model", &model)
	text("ggml.pre", &pre)
	if model == "" && errs == nil {
		return nil, fmt.Errorf("key %q: is missing: the file has no tokenizer: use a file with one",
			"tokenizer.ggml.model")
	}
	g := NewGGML(model, pre)
	text("chat_template", &g.ChatTemplate)
	text("chat_template.tool_use", &g.ToolTemplate)
	for key, to := range map[string]*int32{"bos": &g.BOS, "eos": &g.EOS, "eot": &g.EOT,
		"eom": &g.EOM, "unknown": &g.Unknown, "padding": &g.Pad} {
		id, has, err := f.Int("tokenizer.ggml." + key + "_token_id")
		if err == nil && has {
			*to, err = ggmlID(key+"_token_id", id)
		}
		errs = append(errs, err)
	}
	for key, to := range map[string]*bool{"add_bos_token": &g.AddBOS, "add_eos_token": &g.AddEOS,
		"add_space_prefix": &g.SpacePrefix} {
		v, has, err := f.Bool("tokenizer.ggml." + key)
		if err == nil && has {
			*to = v
		}
		errs = append(errs, err)
	}
	for key, to := range map[string]*[]string{"tokens": &g.Tokens, "merges": &g.Merges} {
		v, _, err := f.Texts("tokenizer.ggml." + key)
		*to, errs = v, append(errs, err)
	}
	for key, to := range map[string]*[]int32{"token_type": &g.Types, "eos_token_ids": &g.Ends} {
		v, _, err := f.Ints("tokenizer.ggml." + key)
		for _, x := range v {
			id, bad := ggmlID(key, x)
			if *to = append(*to, id); bad != nil {
				err = bad
				break
			}
		}
		errs = append(errs, err)
	}
	var err error
	g.Scores, _, err = f.Floats("tokenizer.ggml.scores")
	if errs = append(errs, err); errors.Join(errs...) != nil {
		for _, err := range errs {
			if err != nil { // one line
				return nil, err
			}
		}
	}
	if len(g.Tokens) == 0 {
		return nil,
			fmt.Errorf(
				"key %q: is missing or empty: the file has no tokenizer: use a file with one",
				"tokenizer.ggml.tokens")
	}
	return g, nil
}

// ggmlID converts an id of a file to int32. 2^32-1 stands for no token, as -1 does.
func ggmlID(key string, id int64) (int32, error) {
	if id == math.MaxUint32 {
		return -1, nil
	}
	if id < -1 || id > math.MaxInt32 {
		return -1, fmt.Errorf("key %q: %d: expected -1 to %d", "tokenizer.ggml."+key, id,
			math.MaxInt32)
	}
	return int32(id), nil
}
