package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// apiError is an error in the JSON of OpenAI's interface, with its HTTP status.
type apiError struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

// refuse returns an error that the request is to blame for.
func refuse(status int, format string, args ...any) *apiError {
	return &apiError{status: status, Message: fmt.Sprintf(format, args...),
		Type: "invalid_request_error"}
}

// withParam sets the parameter that the error is about, and returns e.
func (e *apiError) withParam(param string) *apiError {
	e.Param = &param
	return e
}

// withCode sets the error's code, and returns e.
func (e *apiError) withCode(code string) *apiError {
	e.Code = &code
	return e
}

// fields holds the parameters of a request. A handler reads each once, by name; err is the first
// mistake. rest refuses the parameters that no handler has read.
type fields struct {
	m   map[string]json.RawMessage
	err *apiError
}

// mostElements bounds the strings, lists and objects of a body. Requests need some thousands. Each
// takes up to a hundred times its bytes when it is decoded: a body of 4 MiB could take 300 MB, in
// each of many requests at once.
const mostElements = 50_000

// elements counts the strings, lists and objects of a JSON text, keys included, without decoding
// it.
func elements(body []byte) (n int) {
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '[', '{':
			n++
		case '"':
			n++
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}

// parse reads a body, which must be one JSON object.
func parse(body []byte) (*fields, *apiError) {
	f := &fields{}
	if !utf8.Valid(body) { // would be read as U+FFFD
		return nil, refuse(http.StatusBadRequest, "the body is not UTF-8 text")
	}
	if n := elements(body); n > mostElements {
		return nil, refuse(http.StatusBadRequest,
			"the body has %d texts, lists and objects: more than %d", n, mostElements)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := dec.Decode(&f.m); err != nil || f.m == nil {
		return nil, refuse(http.StatusBadRequest, "the body is not a JSON object%s", where(err, len(body)))
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, refuse(http.StatusBadRequest, "the body has something behind its JSON object")
	}
	return f, nil
}

// where returns the byte at which a body of size bytes stops being JSON, for a message; "" where
// the error is another.
func where(err error, size int) string {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf(": byte %d: %s", syntax.Offset, syntax.Error())
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Sprintf(": it ends at byte %d, too early", size)
	}
	return ""
}

// fail records a mistake about a parameter, unless one is recorded already.
func (f *fields) fail(name, format string, args ...any) {
	if f.err == nil {
		f.err = refuse(http.StatusBadRequest, "%s: %s", name,
			fmt.Sprintf(format, args...)).withParam(name)
	}
}

// take removes and returns a parameter; nil if it is missing or null.
func (f *fields) take(name string) json.RawMessage {
	raw := f.m[name]
	delete(f.m, name)
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// into reads a parameter into v; false if it is missing. what names its type, for the message.
func (f *fields) into(name, what string, v any) bool {
	raw := f.take(name)
	if raw == nil {
		return false
	}
	if err := json.Unmarshal(raw, v); err != nil {
		f.fail(name, "must be %s", what)
		return false
	}
	return true
}

// number reads a number from low to high.
func (f *fields) number(name string, low, high, otherwise float64) float64 {
	x := otherwise
	if f.into(name, "a number", &x) && !(x >= low && x <= high) {
		f.fail(name, "%v: must be from %v to %v", x, low, high)
	}
	return x
}

// integer reads an integer from low to high.
func (f *fields) integer(name string, low, high, otherwise int) int {
	x := otherwise
	if f.into(name, "an integer", &x) && (x < low || x > high) {
		f.fail(name, "%d: must be from %d to %d", x, low, high)
	}
	return x
}

// boolean reads a boolean, false if it is missing.
func (f *fields) boolean(name string) (x bool) {
	f.into(name, "true or false", &x)
	return x
}

// unsupported lists parameters of the interface that this server does not implement, with the
// values that ask for nothing: other values are refused.
var unsupported = map[string][]string{
	"frequency_penalty":  {"0"},
	"presence_penalty":   {"0"},
	"repetition_penalty": {"1"},
	"logit_bias":         {"{}"},
	"suffix":             {`""`},
	"tools":              {"[]"},
	"functions":          {"[]"},
	"tool_choice":        {`"none"`, `"auto"`},
	"function_call":      {`"none"`, `"auto"`},
	"response_format":    {`{"type":"text"}`},
	"modalities":         {`["text"]`},
	"service_tier":       {`"auto"`, `"default"`},
	"reasoning_effort":   {`"none"`},
	// Parameters of vLLM.
	"echo":                       {"false"},
	"min_tokens":                 {"0"},
	"length_penalty":             {"1"},
	"use_beam_search":            {"false"},
	"stop_token_ids":             {"[]"},
	"include_stop_str_in_output": {"false"},
	"skip_special_tokens":        {"true"},
	"add_generation_prompt":      {"true"},
	"continue_final_message":     {"false"},
	"chat_template_kwargs":       {"{}"}, // in completions, which use no chat template
	"return_token_strs":          {"false"},
}

// ignored lists parameters that change no answer. cache_prompt and keep_alive are for other
// servers: here the cache of prompts is always on and the model always loaded.
var ignored = []string{"user", "metadata", "safety_identifier", "prompt_cache_key",
	"parallel_tool_calls", "store", "cache_prompt", "keep_alive"}

// rest refuses the parameters that have not been read, and returns the request's first mistake.
func (f *fields) rest() *apiError {
	for _, name := range ignored {
		delete(f.m, name)
	}
	for _, name := range sortedNames(f.m) {
		raw := f.take(name)
		if raw == nil { // null asks for nothing
			continue
		}
		allowed, known := unsupported[name]
		switch {
		case slices.ContainsFunc(allowed, func(v string) bool { return alike(raw, v) }):
		case known:
			f.fail(name, "is not supported: leave it out, or give %s",
				strings.Join(allowed, " or "))
		default:
			f.fail(short(name), "is not known here: leave it out")
		}
	}
	return f.err
}

// sortedNames returns the names of parameters in order.
func sortedNames(m map[string]json.RawMessage) []string { return slices.Sorted(maps.Keys(m)) }

// alike reports whether raw is the JSON value, with numbers compared as such (0.0 is 0).
func alike(raw json.RawMessage, value string) bool {
	x, err := strconv.ParseFloat(string(raw), 64)
	if y, not := strconv.ParseFloat(value, 64); err == nil && not == nil {
		return x == y
	}
	var compact bytes.Buffer
	return json.Compact(&compact, raw) == nil && compact.String() == value
}

// hasNull reports whether there is a null in a value.
func hasNull(raw json.RawMessage) bool {
	if !bytes.Contains(raw, []byte("null")) {
		return false
	}
	for dec := json.NewDecoder(bytes.NewReader(raw)); ; {
		switch t, err := dec.Token(); {
		case err != nil:
			return false
		case t == nil:
			return true
		}
	}
}

// short returns a client's name of a parameter, cut for an error message.
func short(name string) string {
	if len(name) > 40 {
		name = strings.ToValidUTF8(name[:40], "") + "..."
	}
	return name
}

// texts reads a string or a list of at most so many strings, each of 1 to so many bytes.
func (f *fields) texts(name string, most, bytes int) []string {
	raw := f.take(name)
	if raw == nil {
		return nil
	}
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil {
		list = make([]string, 1)
		if json.Unmarshal(raw, &list[0]) != nil {
			f.fail(name, "must be a string or a list of strings")
			return nil
		}
	}
	if len(list) > most {
		f.fail(name, "%d strings: at most %d are taken", len(list), most)
	}
	for _, s := range list {
		if s == "" || len(s) > bytes {
			f.fail(name, "a string of %d bytes: each must have 1 to %d", len(s), bytes)
		}
	}
	return list
}

// seed reads the seed, any integer of 64 bits; given is false if the request has none.
func (f *fields) seed() (seed uint64, given bool) {
	raw := f.take("seed")
	if raw == nil {
		return 0, false
	}
	var signed int64
	if json.Unmarshal(raw, &signed) == nil {
		return uint64(signed), true
	}
	if json.Unmarshal(raw, &seed) != nil {
		f.fail("seed", "must be an integer of 64 bits")
	}
	return seed, true
}

// greedyBelow is a temperature below which answers are greedy, as with vLLM.
const greedyBelow = 1e-5

// temperature reads the temperature: 0 for greedy, or a number that leaves logits finite.
func (f *fields) temperature() float64 {
	x := f.number("temperature", 0, 2, 1)
	switch {
	case x < greedyBelow: // some clients write 1e-9 for 0
		return 0
	case x < 0.01:
		f.fail("temperature", "%v: must be 0, which is greedy, or from 0.01 to 2", x)
	}
	return x
}
