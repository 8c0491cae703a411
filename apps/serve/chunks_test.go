package serve

import (
	"encoding/json"
	"strings"
	"testing"

	"gad/device"
	"gad/model"
)

// In chunks a server's answers are those of Generate, of more tokens than its context has; a stream
// shows no seam, and stops are found across them.
func TestServeInChunks(t *testing.T) {
	chunks := model.Chunks{Size: 16, Carry: 8, Head: 3, Most: 6}
	r := run(t, Options{Chunks: chunks, Context: 32, Slots: 2, Cache: 64})
	prompt := r.tok.EncodeSpecial("Once")
	be, err := device.Open(device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.New(be, shape(r.tok.Size()), model.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	out, err := m.Generate([][]int32{prompt}, []uint64{0}, model.SampleOptions{N: 3, MaxNew: 56,
		Chunks: chunks, Seed: 3, Sampling: model.Sampling{Temperature: 1}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"prompt":"Once","seed":3,"max_tokens":500,"ignore_eos":true,"temperature":1`
	a := r.ask("/v1/completions", body+`,"n":3}`)
	for i, w := range out[0] {
		if c := a.Choices[i]; c.Text != r.tok.Decode(w.IDs, true) || *c.Finish != "length" ||
			len(w.IDs) != 56 {
			t.Errorf("choice %d: %q %s, want %q", i, c.Text, *c.Finish, r.tok.Decode(w.IDs, true))
		}
	}
	if a.Usage.Completion != 3*56 || a.Usage.Prompt != len(prompt) {
		t.Errorf("usage %+v", a.Usage)
	}
	whole := a.Choices[0].Text
	rs := []rune(whole)
	for at := 1; at+3 < len(rs); at += 7 {
		stop := string(rs[at : at+3])
		if strings.Contains(stop, "\ufffd") {
			continue
		}
		raw, _ := json.Marshal(stop)
		want, got := whole[:strings.Index(whole, stop)], ""
		for _, e := range r.events("/v1/completions", body+`,"stream":true,"stop":`+string(raw)+`}`) {
			got += e.Choices[0].Text
		}
		if got != want {
			t.Errorf("stop %q: streamed %q, want %q", stop, got, want)
		}
	}
	if _, err := New(r.m, r.tok, Options{Chunks: chunks, Context: 16}); err == nil {
		t.Error("chunks that leave no room for a prompt are taken")
	}
}
