package judge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// maxVerdict is the size of the part of a reply that is parsed, in bytes: its end, where the
// verdict stands.
const maxVerdict = 64 << 10

// grades is a verdict in mode score.
type grades struct{ reference, answer float64 }

// parseGrades reads the grades in a judge's reply.
func parseGrades(reply string) (g grades, err error) {
	v, err := verdict(reply, gradeKeys)
	if err != nil {
		return g, err
	}
	for key, to := range map[string]*float64{"reference": &g.reference, "answer": &g.answer} {
		n, ok := v[key].(json.Number)
		if !ok {
			return g, fmt.Errorf("%q is no number", key)
		}
		if *to, err = strconv.ParseFloat(string(n), 64); err != nil || !(*to >= 1 && *to <= 10) {
			return g, fmt.Errorf("%q is %s: must be 1 to 10", key, n)
		}
	}
	return g, nil
}

// parseBetter reads the better answer in a judge's reply: "A", "B" or "tie".
func parseBetter(reply string) (string, error) {
	v, err := verdict(reply, betterKeys)
	if err != nil {
		return "", err
	}
	switch s, _ := v["better"].(string); s {
	case "A", "B", "tie":
		return s, nil
	}
	return "", fmt.Errorf(`"better" is none of "A", "B" and "tie"`)
}

// Keys of a verdict by mode.
var (
	gradeKeys  = []string{"reference", "answer"}
	betterKeys = []string{"better"}
)

// verdict returns the JSON object in the reply that has all the keys. Two that differ are an error:
// one may be quoted from the answer to judge. A thought before the reply is ignored.
func verdict(reply string, keys []string) (found map[string]any, err error) {
	reply = stripThought(reply)
	if len(reply) > maxVerdict {
		reply = reply[len(reply)-maxVerdict:]
	}
	for v := range objects(reply, keys) {
		if found != nil && !same(found, v, keys) {
			return nil, fmt.Errorf("has two verdicts that differ")
		}
		found = v
	}
	if found == nil {
		return nil, fmt.Errorf("has no JSON object with %s", strings.Join(keys, " and "))
	}
	return found, nil
}

// quotesVerdict returns a function that reports whether the verdict with these keys in a reply is
// also in the material: then the judge may have repeated the answer's own words about itself.
func quotesVerdict(keys []string) func(reply, material string) bool {
	return func(reply, material string) bool {
		v, err := verdict(reply, keys)
		if err != nil || !strings.Contains(material, keys[0]) {
			return false
		}
		for o := range objects(material, keys) {
			if same(v, o, keys) {
				return true
			}
		}
		return false
	}
}

// same reports whether two objects have equal values of the keys.
func same(a, b map[string]any, keys []string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { return a[k] != b[k] })
}

// objects yields the flat JSON objects in a text that have all the keys.
func objects(text string, keys []string) iter.Seq[map[string]any] {
	return func(yield func(map[string]any) bool) {
		for rest := text; ; {
			at := strings.IndexByte(rest, '{')
			if at < 0 {
				return
			}
			rest = rest[at+1:]
			end := strings.IndexAny(rest, "{}")
			if end < 0 {
				return
			}
			if rest[end] == '{' { // flat objects only: this is linear
				continue
			}
			v, ok := object("{" + rest[:end+1])
			for _, k := range keys {
				_, has := v[k]
				ok = ok && has
			}
			if ok && !yield(v) {
				return
			}
		}
	}
}

// object decodes a flat JSON object without repeated keys.
func object(text string) (map[string]any, bool) {
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	v := map[string]any{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, false
		}
		name := key.(string) // json: keys are strings
		value, err := dec.Token()
		if _, deep := value.(json.Delim); err != nil || deep {
			return nil, false
		}
		if _, twice := v[name]; twice {
			return nil, false
		}
		v[name] = value
	}
	if t, err := dec.Token(); err != nil || t != json.Delim('}') {
		return nil, false
	}
	return v, true
}
