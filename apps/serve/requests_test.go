package serve

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"gad/internal/hostile"
	"gad/model"
	"gad/tokenizer"
)

// A token's text_offset is where its text is, also behind characters of several tokens and
// behind a token that the tokenizer puts before a text.
func TestTextOffsets(t *testing.T) {
	for _, name := range []string{"qwen2", "llama3"} {
		r := runWith(t, Options{}, false, name)
		const text = "Hä 世界 🙂🙂 text <|im_end|><|eot_id|> end"
		ids := strings.ReplaceAll(fmt.Sprint(r.tok.EncodeSpecial(text)), " ", ",")
		for _, prompt := range []string{`"` + text + `"`, ids} {
			body := `{"prompt":` + prompt + `,"echo":true,"logprobs":1,"max_tokens":40,"seed":5,"ignore_eos":true`
			whole := r.ask("/v1/completions", body+`}`).Choices[0]
			var offsets []int
			for _, e := range r.events("/v1/completions", body+`,"stream":true}`) {
				if l := e.Choices[0].Logprobs; l != nil {
					offsets = append(offsets, l.Offset...)
				}
			}
			if fmt.Sprint(offsets) != fmt.Sprint(whole.Logprobs.Offset) {
				t.Errorf("%s: streamed %v, whole %v", name, offsets, whole.Logprobs.Offset)
			}
			rs, split, found := []rune(whole.Text), 0, 0
			for k, token := range whole.Logprobs.Tokens {
				at := whole.Logprobs.Offset[k]
				if at < 0 || at > len(rs) || k > 0 && at < offsets[k-1] {
					t.Fatalf("%s: token %d, %q, is at %d of %d", name, k, token, at, len(rs))
				}
				if strings.HasPrefix(token, "bytes:") {
					split++
					continue
				}
				control := r.tok.Encode(token)
				if hidden := len(control) == 1 &&
					r.tok.Special(control[0]); !strings.HasPrefix(string(rs[at:]), token) &&
					!hidden {
					t.Errorf("%s: token %d, %q, is not at %d of %q", name, k, token, at, whole.Text)
				}
				found++
			}
			if split < 3 || found < 20 {
				t.Errorf(
					"%s: %d tokens are parts of characters, %d are not: the test shows nothing",
					name, split, found)
			}
			if last := r.tok.Encode(" end"); offsets[len(r.tok.EncodeSpecial(text))-len(
				last)] != utf8.RuneCountInString(text)-len(" end") && prompt != ids {
				t.Errorf("%s: the prompt's last word is at %d", name,
					offsets[len(r.tok.EncodeSpecial(text))-len(last)])
			}
		}
	}
}

// An answer whose stop is completed by its very end has ended with "stop".
func TestStopAtTheEnd(t *testing.T) {
	tok, err := tokenizer.Load("../../testdata/tokenizer/qwen2")
	if err != nil {
		t.Fatal(err)
	}
	half := tok.Encode("世")[0]
	if utf8.Valid(tok.Piece(half)) {
		t.Fatal("the character is one token: the test shows nothing")
	}
	c := &choice{call: newCall(), stops: []string{"\ufffd"}, text: tok.Stream(true)}
	if !c.token(model.Token{ID: half}) {
		t.Error("half of a character ends the answer")
	}
	if c.complete(model.Completion{Truncated: true}); c.finish != "stop" || len(c.parts) != 0 {
		t.Errorf("finish %q, parts %+v", c.finish, c.parts)
	}
}

// What may stand between a client and the server, or is old, is spoken: HTTP/1.0 without a
// Host, several requests at once on a connection, bodies in pieces.
func TestOtherWaysToSpeakHTTP(t *testing.T) {
	r := run(t, Options{})
	const body = `{"prompt":"x","max_tokens":2,"seed":1}`
	const post, kind = "POST /v1/completions HTTP/1.", "Content-Type: application/json\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body))
	for _, c := range []struct {
		what, text string
		answers    int
	}{
		{"HTTP/1.0 without a Host", post + "0\r\n" + kind + length + body, 1},
		{"pipelined", strings.Repeat(post+"1\r\nHost: localhost\r\n"+kind+length+body, 2) + post +
			"1\r\nHost: localhost\r\nConnection: close\r\n" + kind + length + body, 3},
		{"in pieces", post + "1\r\nHost: localhost\r\nConnection: close\r\n" + kind +
			"Transfer-Encoding: chunked\r\n\r\n5\r\n" + body[:5] +
			fmt.Sprintf("\r\n%x\r\n", len(body)-5) + body[5:] + "\r\n0\r\n\r\n", 1},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(conn, c.text)
		in := bufio.NewReader(conn)
		for i := range c.answers {
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("%s: answer %d: %v", c.what, i, err)
			}
			raw, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != 200 || !strings.Contains(string(raw), `"completion_tokens":2`) {
				t.Errorf("%s: answer %d: %d %s: %v", c.what, i, res.StatusCode, raw, err)
			}
		}
		conn.Close()
	}
}

// What is streamed adds up to what is sent at once: text, tokens with their offsets, ends and
// numbers of tokens, with stops that fall anywhere, several answers, and an echo.
func TestStreamedIsWhole(t *testing.T) {
	t.Parallel()
	r := run(t, Options{})
	rng := rand.New(rand.NewPCG(3, 4))
	ends := map[string]int{}
	for i := range hostile.Share(80) {
		body := fmt.Sprintf(`"seed":%d,"max_tokens":%d,"n":%d,"temperature":%g,"ignore_eos":%t`, i, 1+rng.IntN(40), 1+rng.IntN(3), []float64{0, 0.8, 1.5}[i%3], i%2 == 0)
		path, ask := "/v1/completions", fmt.Sprintf(`{"prompt":["Hä 世","x"],"echo":%t,"logprobs":%d,`, i%4 == 0, i%6)
		if i%3 == 1 {
			path, ask = "/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":"Hä 世"}],"logprobs":true,"top_logprobs":%d,`, i%20)
		}
		if i%5 > 1 { // a stop from the middle of the answer without one
			c := r.ask(path, ask+body+`}`).Choices[0]
			if rs := []rune(c.Text + c.Message.Content); len(rs) > 4 {
				at := rng.IntN(len(rs) - 3)
				raw, _ := json.Marshal([]string{string(rs[at : at+1+rng.IntN(3)]), "\ufffd\ufffd"})
				body += `,"stop":` + string(raw)
			}
		}
		whole := r.ask(path, ask+body+`}`)
		parts := make([]choiceOut, len(whole.Choices))
		list := r.events(path, ask+body+`,"stream":true,"stream_options":{"include_usage":true}}`)
		for _, e := range list {
			for _, c := range e.Choices {
				p := &parts[c.Index]
				p.Index, p.Text, p.Message.Content =
					c.Index, p.Text+c.Text, p.Message.Content+c.Delta.Content
				if p.Finish != nil {
					t.Errorf("%d: choice %d has something after its end: %+v", i, c.Index, c)
				}
				if p.Finish = c.Finish; c.Delta.Role != "" {
					p.Message.Role = c.Delta.Role
				}
				if l := c.Logprobs; l != nil && p.Logprobs == nil {
					p.Logprobs = l
				} else if l != nil {
					a := p.Logprobs
					a.Tokens, a.Logp, a.Top, a.Offset, a.Content =
						append(a.Tokens, l.Tokens...), append(a.Logp, l.Logp...),
						append(a.Top, l.Top...), append(a.Offset, l.Offset...),
						append(a.Content, l.Content...)
				}
			}
		}
		if !reflect.DeepEqual(parts, whole.Choices) ||
			!reflect.DeepEqual(list[len(list)-1].Usage, whole.Usage) {
			t.Errorf("%d: %s%s}:\nstreamed %+v %+v\nwhole    %+v %+v", i, ask, body, parts,
				list[len(list)-1].Usage, whole.Choices, whole.Usage)
		}
		for _, c := range whole.Choices {
			ends[*c.Finish]++
		}
	}
	if ends["stop"] < 10 || ends["length"] < 10 {
		t.Errorf("ends %v: the test shows little", ends)
	}
}
