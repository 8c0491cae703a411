package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"gad/internal/chat"
)

// LogprobsColumn is the column with Row.Logprobs.
const LogprobsColumn = "teacher_logprobs"

// Logprobs are the teacher's log-probabilities of the tokens of its answer: for each of its tokens,
// in order, the token itself first and then others that it thought likely. Tokens are identified by
// the bytes that they write, since a student may have another vocabulary and the text of a token
// need not be whole characters.
type Logprobs [][]Logprob

// Logprob is one token that the teacher may have written.
type Logprob struct {
	Bytes   string  // need not be UTF-8; "" is the end of the answer, or a token that writes nothing
	LogProb float32 // natural logarithm, at most 0; NoLogProb where the server gives none
}

// NoLogProb is the log-probability of a token that is only known to be unlikely: OpenAI's servers
// write it for tokens outside the first twenty.
const NoLogProb = -9999

const (
	MaxLogprobs = 1024 // scored tokens at one place
	overOne     = 1e-3 // tolerance of the sum of probabilities at one place above 1
)

// ErrLogprobs is wrapped by errors of ReadLogprobs.
var ErrLogprobs = errors.New("not log-probabilities of tokens")

// badLogprobs returns an error that wraps ErrLogprobs.
func badLogprobs(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrLogprobs, fmt.Sprintf(format, args...))
}

// ReadLogprobs parses a value of the column teacher_logprobs, or logprobs of an OpenAI-format
// server's choice:
//
//	[["It",-0.25,"That",-2],[[226,130],-0.5],...]   a list for each token: token, log-probability,
//	                                                another token, its log-probability, ...
//	[{"token","logprob","bytes","top_logprobs"},...], or {"content": that list}
//
// A token is its text, or the list of its bytes if these are not text. In the second form token is
// ignored: it is the server's rendering, which may differ from the token's bytes. A token without
// bytes writes nothing; among top_logprobs it is left out. A log-probability that is null, or
// NoLogProb or less, is NoLogProb; such a token among the others is left out. Of tokens with equal
// bytes at one place the first counts. null and an empty list are nil.
func ReadLogprobs(value []byte) (Logprobs, error) {
	if !utf8.Valid(value) {
		return nil, badLogprobs("not valid UTF-8")
	}
	if !json.Valid(value) {
		return nil, badLogprobs("not JSON")
	}
	at := skipBlank(value, 0)
	switch value[at] {
	case 'n':
		return nil, nil
	case '{':
		var of struct{ Content json.RawMessage }
		if err := json.Unmarshal(value, &of); err != nil || len(of.Content) == 0 {
			return nil, badLogprobs("an object without content")
		}
		if value = of.Content; value[0] == 'n' {
			return nil, nil
		}
	default:
		value = value[at:]
	}
	list, err := listElements(value)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, nil
	}
	out := make(Logprobs, 0, len(list))
	for i, e := range list {
		var at []Logprob
		if e[0] == '[' {
			at, err = flatLogprobs(e)
		} else {
			at, err = servedLogprobs(e)
		}
		if err != nil {
			return nil, fmt.Errorf("token %d: %w", i, err)
		}
		if at, err = dropUnlikely(at); err != nil {
			return nil, fmt.Errorf("token %d: %w", i, err)
		}
		out = append(out, at)
	}
	return out, nil
}

// listElements returns the elements of a JSON list.
func listElements(value []byte) ([]json.RawMessage, error) {
	if len(value) == 0 || value[0] != '[' {
		return nil, badLogprobs("%s: not a list", Preview(string(value), 20))
	}
	var list []json.RawMessage
	if list, ok := ScanList(nil, value); ok {
		return list, nil
	}
	if err := json.Unmarshal(value, &list); err != nil {
		return nil, badLogprobs("%v", err)
	}
	return list, nil
}

// flatLogprobs parses [token, log-probability, token, log-probability, ...].
func flatLogprobs(value []byte) ([]Logprob, error) {
	list, err := listElements(value)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || len(list)%2 != 0 {
		return nil, badLogprobs("%s: tokens and numbers must take turns, from a token on",
			CountOf(len(list), "element"))
	}
	at := make([]Logprob, len(list)/2)
	for i := range at {
		if list[2*i][0] == '"' {
			t, err := jsonText("", list[2*i])
			if err != nil {
				return nil, badLogprobs("%v", err)
			}
			at[i].Bytes = t.S
		} else if at[i].Bytes, err = readBytes(list[2*i]); err != nil {
			return nil, err
		}
		if at[i].LogProb, err = readLogProb(list[2*i+1]); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// servedLogprobs parses a token in a server's form.
func servedLogprobs(value []byte) ([]Logprob, error) {
	token := func(value []byte) (l Logprob, known bool, top []json.RawMessage, err error) {
		var of struct {
			LogProb json.RawMessage `json:"logprob"`
			Bytes   json.RawMessage `json:"bytes"`
			Top     json.RawMessage `json:"top_logprobs"`
		}
		if len(value) == 0 || value[0] != '{' || json.Unmarshal(value, &of) != nil {
			return l, false, nil, badLogprobs("%s: neither a list nor an object with logprob and bytes", Preview(string(value), 20))
		}
		if known = len(of.Bytes) > 0 && of.Bytes[0] != 'n'; known {
			if l.Bytes, err = readBytes(of.Bytes); err != nil {
				return l, false, nil, err
			}
		}
		if len(of.LogProb) == 0 {
			return l, false, nil, badLogprobs("no logprob")
		}
		if l.LogProb, err = readLogProb(of.LogProb); err != nil {
			return l, false, nil, err
		}
		if len(of.Top) > 0 && of.Top[0] != 'n' {
			top, err = listElements(of.Top)
		}
		return l, known, top, err
	}
	first, _, top, err := token(value)
	if err != nil {
		return nil, err
	}
	at := []Logprob{first}
	for _, e := range top {
		l, known, _, err := token(e)
		if err != nil {
			return nil, fmt.Errorf("top_logprobs: %w", err)
		}
		if known {
			at = append(at, l)
		}
	}
	return at, nil
}

// readBytes parses a list of bytes.
func readBytes(value []byte) (string, error) {
	list, err := listElements(value)
	if err != nil {
		return "", err
	}
	b := make([]byte, len(list))
	for i, e := range list {
		n, err := strconv.ParseUint(string(e), 10, 8)
		if err != nil {
			return "", badLogprobs("byte %d is %s: write whole numbers from 0 to 255", i,
				Preview(string(e), 20))
		}
		b[i] = byte(n)
	}
	return string(b), nil
}

// readLogProb parses a log-probability.
func readLogProb(value []byte) (float32, error) {
	if string(value) == "null" {
		return NoLogProb, nil
	}
	x, err := strconv.ParseFloat(string(value), 64)
	switch {
	case value[0] != '-' && (value[0] < '0' || value[0] > '9'):
		return 0, badLogprobs("log-probability %s: not a number", Preview(string(value), 20))
	case x > overOne: // +inf is an error too
		return 0, badLogprobs("log-probability %s: more than 0", Preview(string(value), 20))
	case err != nil && !math.IsInf(x, -1):
		return 0, badLogprobs("log-probability %s: not a number", Preview(string(value), 20))
	}
	return float32(min(0, max(x, NoLogProb))), nil
}

// dropUnlikely returns the tokens at one place without repeated tokens, and without tokens of
// NoLogProb other than the first. It checks the number of tokens and the sum of their
// probabilities.
func dropUnlikely(at []Logprob) ([]Logprob, error) {
	out, sum := at[:0], 0.0
	for i, l := range at {
		twice := false
		for _, was := range out {
			twice = twice || was.Bytes == l.Bytes
		}
		if twice || i > 0 && l.LogProb <= NoLogProb {
			continue
		}
		out = append(out, l)
		sum += math.Exp(float64(l.LogProb))
		if len(out) > MaxLogprobs {
			return nil, badLogprobs("more than %d tokens at one place", MaxLogprobs)
		}
	}
	if sum > 1+overOne {
		return nil, badLogprobs("probabilities of %.4g in all: must be at most 1", sum)
	}
	return out, nil
}

// ReadLogprobsOf parses a value of the column key of a row. Its error is a Fault.
func ReadLogprobsOf(key string, value []byte) (Logprobs, error) {
	l, err := ReadLogprobs(value)
	if err != nil {
		return nil, &Fault{key, "", err.Error(), "remove the column, or the value of this row"}
	}
	return l, nil
}

// LogprobsOf parses a text as ReadLogprobsOf does; a blank text is nil.
func LogprobsOf(key string, t Text) (Logprobs, error) {
	if !t.OK || strings.TrimSpace(t.S) == "" {
		return nil, nil
	}
	return ReadLogprobsOf(key, []byte(t.S))
}

// MarshalJSON writes the first form of ReadLogprobs, and null for nil.
func (l Logprobs) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("null"), nil
	}
	return []byte(l.String()), nil
}

// UnmarshalJSON parses any form of ReadLogprobs.
func (l *Logprobs) UnmarshalJSON(value []byte) (err error) {
	*l, err = ReadLogprobs(value)
	return err
}

// String returns the text of MarshalJSON, "" for nil.
func (l Logprobs) String() string {
	if l == nil {
		return ""
	}
	var b strings.Builder
	b.WriteByte('[')
	var number []byte
	for i, at := range l {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('[')
		for k, t := range at {
			if k > 0 {
				b.WriteByte(',')
			}
			if utf8.ValidString(t.Bytes) {
				chat.WriteString(&b, t.Bytes)
			} else {
				b.WriteByte('[')
				for j := range len(t.Bytes) {
					if j > 0 {
						b.WriteByte(',')
					}
					b.WriteString(strconv.Itoa(int(t.Bytes[j])))
				}
				b.WriteByte(']')
			}
			b.WriteByte(',')
			number = strconv.AppendFloat(number[:0], float64(t.LogProb), 'g', -1, 32)
			b.Write(number)
		}
		b.WriteByte(']')
	}
	b.WriteByte(']')
	return b.String()
}

// Spell cuts the answer text into the teacher's tokens: ends[i] is the end of token i. ok is false
// if the tokens do not spell the answer. White space at the answer's end may be missing, as the
// answer is learned without; the last token may be a control token, which is not part of the text.
func (l Logprobs) Spell(text string) (ends []int, ok bool) {
	text = strings.TrimRight(text, " \t\r\n")
	at := 0
	for i, token := range l {
		s := token[0].Bytes
		if rest := text[min(at, len(text)):]; len(s) <= len(rest) {
			if rest[:len(s)] != s {
				return ends, at == len(text) && i == len(l)-1
			}
		} else if s[:len(rest)] != rest || strings.TrimRight(s[len(rest):], " \t\r\n") != "" {
			return ends, at >= len(text) && i == len(l)-1
		}
		at += len(s)
		ends = append(ends, at)
	}
	return ends, at >= len(text)
}
