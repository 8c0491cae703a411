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

// maxVerdict bounds what is read of a judge's reply, in bytes. The verdict is at its
// end, so the end is what is kept.
const maxVerdict = 64 << 10

// grades are what a judge gives in mode score.
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

// parseBetter reads which answer a judge prefers: "A", "B" or "tie".
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

// What a verdict of each mode has.
var (
	gradeKeys  = []string{"reference", "answer"}
	betterKeys = []string{"better"}
)

// verdict is the one JSON object in the reply that has all the keys. Two of them that
// differ are no verdict: one may be a quotation of the answer that is judged. What a
// reasoning model thinks before its reply is left out.
func verdict(reply string, keys []string) (found map[string]any, err error) {
	reply = thought(reply)
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

// quoted reports whether the verdict with these keys in a reply stands in the material too: then
// it may be the answer's own words about itself, which the judge has repeated.
func quoted(keys []string) func(reply, material string) bool {
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

func same(a, b map[string]any, keys []string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { return a[k] != b[k] })
}

// objects are the flat JSON objects in a text that have all the keys.
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
			if rest[end] == '{' { // verdicts are flat, which keeps this linear
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

// object decodes a flat JSON object in which no key stands twice.
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
