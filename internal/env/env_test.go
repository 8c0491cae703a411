//go:build unix

package env

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The tests' environment is this test program again: FAKE says how its hello is wrong, and a turn
// what it does in the place of a reply.
func TestMain(m *testing.M) {
	if fake := os.Getenv("FAKE"); fake != "" {
		act(fake)
		return
	}
	flag.Parse()
	flag.Set("test.parallel", "8") // those in parallel mostly wait
	os.Exit(m.Run())
}

// act is the environment. A turn that is no order gets a reply that depends on the seed and all
// turns; the sixth is the last. With FORK it can fork: "well", or as misfork has it.
func act(fake string) {
	in := bufio.NewReader(os.Stdin)
	said := map[uint64][]string{}
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		q := &request{}
		if err := json.Unmarshal(text, q); err != nil {
			panic(err)
		}
		switch q.Op {
		case "hello":
			places := os.Getenv("PLACES")
			if places == "" {
				places = "64"
			}
			if fake == "serves" {
				places = "1"
			}
			if os.Getenv("FORK") != "" {
				places += `,"fork":true`
			}
			fmt.Printf(`{"name":"fake","version":1,"episodes":%s}`+"\n", places)
			continue
		case "reset":
			said[*q.ID] = []string{fmt.Sprint(*q.Seed, string(q.Row.Env))}
		case "fork":
			if *q.Turns < 1 || *q.Turns+1 >= len(said[*q.From]) || said[*q.ID] != nil {
				panic("fork of what there is not")
			}
			said[*q.ID] = slices.Clone(said[*q.From][:*q.Turns+1])
			if misfork(os.Getenv("FORK"), *q.ID, *q.From) {
				continue
			}
			if os.Getenv("FORK") == "state" {
				said[*q.ID][1] = "another turn"
			}
			*q = request{Op: "step", ID: q.ID, Turn: &said[*q.ID][*q.Turns]}
		case "close":
			if said[*q.ID] == nil {
				panic("close of an unknown id")
			}
			delete(said, *q.ID)
			continue
		case "step":
			if said[*q.ID] == nil {
				panic("step of an unknown id")
			}
			said[*q.ID] = append(said[*q.ID], *q.Turn)
			if order(*q.Turn, *q.ID) {
				continue
			}
		}
		h := fnv.New64a()
		fmt.Fprint(h, said[*q.ID])
		r := Reply{Append: []Message{{Role: "user", Content: fmt.Sprint(h.Sum64())}}, Valid: true,
			Anchor: fmt.Sprint(len(said[*q.ID]))}
		if q.Op == "step" && strings.HasPrefix(*q.Turn, "pid") {
			r.Append[0].Content = fmt.Sprint(os.Getpid())
		}
		if what, ok := strings.CutPrefix(said[*q.ID][len(said[*q.ID])-1], "differ "); ok {
			field, file, _ := strings.Cut(what, " ")
			if _, err := os.Stat(file); err == nil { // it is played again
				r = altered(r, field)
			}
		}
		if len(said[*q.ID]) == 7 {
			r = Reply{Reward: float64(h.Sum64() % 100), Done: true, Valid: true, Label: "end"}
		}
		out, err := line(replyLine(*q.ID, q.Op, r))
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(out)
	}
}

// misfork does what FORK says in the place of a reply to a fork; false: there is a reply as well.
func misfork(how string, id, from uint64) bool {
	how, once, _ := strings.Cut(how, " ")
	switch how {
	case "error":
		return order(`print {"id":ID,"error":"no more memory"}`, id)
	case "from":
		return order(`print {"id":ID,"append":[{"role":"user","content":"x"}]}`, from)
	case "id":
		return order(`print {"id":999999,"append":[{"role":"user","content":"x"}]}`, id)
	case "only":
		return order(`print {"id":ID}`, id)
	case "exit", "kill", "hang", "half":
		return order(how+" "+once, id)
	}
	return false
}

// order does what a turn says; false: there is a reply as well.
func order(turn string, id uint64) bool {
	verb, rest, _ := strings.Cut(turn, " ")
	once := func(do func()) bool {
		if rest != "" {
			f, err := os.OpenFile(rest, os.O_CREATE|os.O_EXCL, 0o644)
			if err != nil {
				return false // it has been done
			}
			f.Close()
		}
		do()
		return true
	}
	switch verb {
	case "print":
		text, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.ReplaceAll(rest, "ID", fmt.Sprint(id)), `"`, `\"`) + `"`)
		if err != nil {
			panic(err)
		}
		fmt.Println(text)
	case "long":
		fmt.Printf(`{"id":%d,"append":[{"role":"user","content":"%s"}]}`+"\n", id, strings.Repeat("x", 2<<20))
	case "flood":
		for {
			fmt.Println("noise")
		}
	case "exit":
		return once(func() { os.Exit(3) })
	case "kill":
		return once(func() { syscall.Kill(os.Getpid(), syscall.SIGKILL); time.Sleep(time.Hour) })
	case "hang":
		return once(func() { time.Sleep(time.Hour) })
	case "close":
		return once(func() { os.Stdout.Close(); time.Sleep(time.Hour) })
	case "half":
		return once(func() { fmt.Printf(`{"id":%d,"app`, id); os.Exit(1) })
	case "talk":
		for range 300_000 {
			fmt.Fprintln(os.Stderr, "all work and no play")
		}
		return false
	case "breed":
		cmd := exec.Command("sleep", "60")
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		return false
	case "twice":
		fmt.Printf(`{"id":%d,"append":[{"role":"user","content":"and again"}]}`+"\n", id)
		return false
	default:
		return false
	}
	return true
}

var quick = []time.Duration{time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond}

const fake = `FAKE=yes "$GAD"`

// pools counts the open pools. Tests run side by side, so processes count as leaked only when the
// last pool is closed.
var pools struct {
	sync.Mutex
	open int
}

// pool is a pool of the tests' environment, which leaves no goroutine and no process.
func pool(t *testing.T, command string, workers int, timeout time.Duration) *Pool {
	t.Helper()
	before := runtime.NumGoroutine()
	pools.Lock()
	pools.open++
	pools.Unlock()
	p, err := open(context.Background(),
		Options{Command: command, Workers: workers, Timeout: timeout}, time.Minute, quick)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		for range 6000 {
			if runtime.NumGoroutine() <= before {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > before {
			buf := make([]byte, 1<<16)
			t.Errorf("%d goroutines, were %d\n%s", n, before, buf[:runtime.Stack(buf, true)])
		}
		pools.Lock()
		defer pools.Unlock()
		if pools.open--; pools.open > 0 {
			return
		}
		if left := children(t); len(left) > 0 {
			t.Errorf("processes are left: %q", left)
		}
	})
	return p
}

// children are the processes that this one has started and that live, or wait to be reaped.
func children(t *testing.T) (left []string) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(raw), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == fmt.Sprint(os.Getpid()) {
			left = append(left, string(raw))
		}
	}
	return left
}

// play plays an episode with turns and returns its replies, and the error that ended it.
func play(p *Pool, seed uint64, turns ...string) (replies []Reply, err error) {
	e := p.Episode()
	defer e.Close()
	return goOn(e, seed, turns...)
}

// goOn plays e with turns, and returns its replies.
func goOn(e Episode, seed uint64, turns ...string) (replies []Reply, err error) {
	r, err := e.Reset(context.Background(), seed, Row{Env: json.RawMessage(`{"a":1}`)})
	for i := 0; err == nil; i++ {
		replies = append(replies, r)
		if i == len(turns) {
			return replies, nil
		}
		r, err = e.Step(context.Background(), Turn{Text: turns[i]})
	}
	return replies, err
}

func TestEpisode(t *testing.T) {
	p := pool(t, fake, 2, 10*time.Second)
	if p.Name() != "fake" || p.Places() != 128 {
		t.Errorf("%s, %d places", p.Name(), p.Places())
	}
	turns := []string{"a", "b", "c", "d", "e", "f"}
	one, err := play(p, 7, turns...)
	if err != nil || len(one) != 7 || !one[6].Done || one[6].Label != "end" ||
		one[2].Anchor != "3" || one[0].Append[0].Role != "user" {
		t.Fatalf("%+v, %v", one, err)
	}
	two, err := play(p, 7, turns...)
	if err != nil || !reflect.DeepEqual(one, two) {
		t.Errorf("the same seed and turns: %+v, %v", two, err)
	}
	if other, _ := play(p, 8, turns...); reflect.DeepEqual(one, other) {
		t.Error("another seed: the same episode")
	}
	e := p.Episode()
	if _, err := e.Step(context.Background(), Turn{}); err == nil {
		t.Error("Step before Reset")
	}
	if _, err := e.Reset(context.Background(), MaxSeed+1, Row{}); err == nil {
		t.Error("a seed of more than 53 bits")
	}
	e.Close()
	e.Close()
	if _, err := e.Reset(context.Background(), 1, Row{}); err == nil {
		t.Error("Reset behind Close")
	}
	p.Close()
	if _, err := play(p, 1); err == nil {
		t.Error("an episode of a closed pool")
	}
}

// Whatever is wrong with a reply is a fault of that episode, on one line that quotes at most 60
// bytes of it, and of no other.
func TestWrongReplies(t *testing.T) {
	p := pool(t, fake, 1, 20*time.Second)
	const ok = `"append":[{"role":"user","content":"x"}]`
	for _, c := range []struct{ turn, want string }{
		{`print hello`, `"hello" is not JSON: print one JSON object a line; messages for people go to standard error`},
		{`print {"id":ID,"append"`, `"{\"id\":ID,\"append\"" is not JSON`},
		{`print [1]`, `"[1]" is not an object: print one JSON object a line`},
		{`print null`, `"null" is not an object`},
		{`print {` + ok + `}`, `has the id of no open episode: a reply has the id of its request, and close gets none`},
		{`print {"id":999999,` + ok + `}`, `has the id of no open episode`},
		{`print {"id":-1,` + ok + `}`, `has the id of no open episode`},
		{`print {"id":1,` + ok + `}`, `has the id of no open episode`}, // closed
		{`print {"id":"ID",` + ok + `}`, `has the id of no open episode`},
		{`long`, `a line of more than 1048576 bytes, "{\"id\":ID,\"append\":[{\"role\":\"user\",\"content\":\"xxx`},
		{`print {"id":ID,"append":[{"role":"user","content":"\xff\xfe"}]}`, `is not UTF-8: write JSON in UTF-8`},
		{`print {"id":ID,"reward":NaN,` + ok + `}`, `"{\"id\":ID,\"reward\":NaN,`},
		{`print {"id":ID,"reward":1e309,` + ok + `}`, `reward is "1e309": must be a finite number`},
		{`print {"id":ID,"reward":"1",` + ok + `}`, `reward is "\"1\"": must be a finite number`},
		{`print {"id":ID,"reward":null,` + ok + `}`, `reward is "null": must be a finite number`},
		{`print {"id":ID,"done":1,` + ok + `}`, `done is "1": must be true or false`},
		{`print {"id":ID,"valid":"no",` + ok + `}`, `valid is "\"no\"": must be true or false`},
		{`print {"id":ID,"anchor":3,` + ok + `}`, `anchor is "3": must be a text`},
		{`print {"id":ID,"label":"a\\u001bb",` + ok + `}`, `label "a\x1bb": must be printable and at most 100 characters`},
		{`print {"id":ID}`, `neither append nor prompt, and not done: give one of them, or "done":true`},
		{`print {"id":ID,"reward":1}`, `neither append nor prompt`},
		{`print {"id":ID,` + ok + `,"prompt":[{"role":"user","content":"x"}]}`, `both append and prompt: give one of them`},
		{`print {"id":ID,"append":[]}`, `an empty list of messages: the student would have nothing to answer`},
		{`print {"id":ID,"prompt":[]}`, `an empty list of messages`},
		{`print {"id":ID,"append":"x"}`, `append is "\"x\"": must be a list of messages`},
		{`print {"id":ID,"append":["x"]}`, `append, message 0: "\"x\"": must be {"role":...,"content":...}`},
		{`print {"id":ID,"append":[{"role":"user","content":" \\t"}]}`, `append, message 0: is empty: every message has a text or tool_calls`},
		{`print {"id":ID,"append":[{"role":"user","content":null}]}`, `append, message 0: is empty`},
		{`print {"id":ID,"append":[{"role":"bot","content":"x"}]}`, `append, message 0: role "bot" is unknown: known are system, user, assistant, tool`},
		{`print {"id":ID,"append":[{"role":"user","content":"x","text":"y"}]}`, `append, message 0: "{\"role\":\"user\",\"content\":\"x\",\"text\":\"y\"}": must be`},
		{`print {"id":ID,"append":[{"role":"assistant","content":"","tool_calls":{}}]}`, `append, message 0: tool_calls is "{}": must be a list of objects`},
		{`print {"id":ID,"append":[{"role":"user","content":"x","train":"no"}]}`, `append, message 0:`},
		{`print {"id":ID,"reword":1,` + ok + `}`, `key "reword" is unknown: known are id, append, prompt, reward, done, valid, anchor, label, error`},
		{`print {"id":ID,"error":"no such level"}`, `the environment says "no such level"`},
		{`print {"id":ID,"error":1}`, `error is "1": must be a text`},
	} {
		t.Run(c.turn, func(t *testing.T) {
			beside := p.Episode()
			defer beside.Close()
			if _, err := beside.Reset(context.Background(), 5, Row{}); err != nil {
				t.Fatal(err)
			}
			e := p.Episode()
			defer e.Close()
			if _, err := e.Reset(context.Background(), 6, Row{}); err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprint(e.(*episode).id)
			_, err := e.Step(context.Background(), Turn{Text: c.turn})
			if err == nil {
				t.Fatal("no fault")
			}
			want := fmt.Sprintf("env: %q: episode %s, turn 1: ", fake, id)
			text := err.Error()
			if !errors.Is(err, ErrFault) || !strings.HasPrefix(text, want) ||
				!strings.Contains(text, strings.ReplaceAll(c.want, "ID", id)) ||
				strings.Contains(text, "\n") {
				t.Errorf("%v\nwant %s...%s", err, want, c.want)
			}
			if i := strings.Index(text, strings.Repeat("x", 61)); i >= 0 {
				t.Errorf("quotes more than 60 bytes: %s", text)
			}
			if _, again := e.Step(context.Background(), Turn{Text: "a"}); again != err {
				t.Errorf("a further turn: %v", again)
			}
			if r, err := beside.Step(context.Background(), Turn{Text: "a"}); err != nil ||
				len(r.Append) != 1 {
				t.Errorf("the episode beside it: %+v, %v", r, err)
			}
		})
	}
	// Lines without end: the child is killed, and the next one is as good as any.
	if _, err := play(p, 1, "flood"); err == nil || !strings.Contains(err.Error(), `"noise" is not JSON`) {
		t.Errorf("%v", err)
	}
	for range 100 {
		if _, err := play(p, 1, "a"); err == nil {
			break
		}
	}
	if replies, err := play(p, 1, "a", "b"); err != nil || len(replies) != 3 {
		t.Errorf("behind a flood: %+v, %v", replies, err)
	}
	// A reply to nothing is a fault of its episode, which does not wait then.
	e, beside := p.Episode(), p.Episode()
	defer e.Close()
	defer beside.Close()
	for _, e := range []Episode{e, beside} {
		if _, err := e.Reset(context.Background(), 1, Row{}); err != nil {
			t.Fatal(err)
		}
	}
	// behind the second reply, both lines of the first have come
	for i, turn := range []string{"twice", "a"} {
		if _, err := []Episode{e, beside}[i].Step(context.Background(),
			Turn{Text: turn}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Step(context.Background(), Turn{Text: "a"}); err == nil ||
		!strings.Contains(err.Error(),
			"is a reply to nothing: print one line for each reset and step") {
		t.Errorf("%v", err)
	}
}

// What a reset must not have; a prompt; a final reply with and without messages.
func TestReplies(t *testing.T) {
	for _, c := range []struct {
		text  string
		reset bool
		want  string // the error, "" is none
	}{
		{`{"id":1,"append":[]}`, true, ""},
		{`{"id":1,"prompt":[{"role":"system","content":"s"},{"role":"assistant","content":"a","train":false}],"anchor":null,"label":null}`, true, ""},
		{`{"id":1,"done":true}`, true, "done is true on a reset: an episode has at least one turn"},
		{`{"id":1,"append":[],"reward":1}`, true, "reward or valid on a reset: they belong to a turn"},
		{`{"id":1,"append":[],"valid":false}`, true, "reward or valid on a reset: they belong to a turn"},
		{`{"id":1,"done":true,"reward":-1.5e3}`, false, ""},
		{`{"id":1,"done":true,"append":[{"role":"tool","content":"","tool_calls":[ {"id" : "c"} ],"name":"n","tool_call_id":"i"}]}`, false, ""},
		{`{"id":1,"append":[{"role":"user","content":"<|im_end|>"}]}`, false, ""},
	} {
		_, err := readReply([]byte(c.text), c.reset)
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
	r, err := readReply([]byte(`{"id":1,"append":[{"role":"user","content":"<|im_end|>é","tool_calls":[ {"id" : "c"} ],"train":false}],"reward":0.5,"valid":false}`), false)
	if m := r.Append[0]; err != nil || r.Reward != 0.5 || r.Valid || r.Done ||
		m.Content != "<|im_end|>é" || m.ToolCalls != `[{"id":"c"}]` || !m.Context {
		t.Errorf("%+v, %v", r, err)
	}
}

// A program that is no environment: an error of Open, and nothing runs on.
func TestNoEnvironment(t *testing.T) {
	const want = `: answer {"op":"hello"} with {"name":"NAME","version":1,"episodes":64}`
	for command, says := range map[string]string{
		"./no-such-program 2>/dev/null": "the program ended with exit status 127 before its hello",
		"echo oh >&2; exit 3":           `the program ended with exit status 3 before its hello; it said "oh"`,
		"true":                          "the program ended with exit status 0 before its hello",
		`echo '{"name":"x","version":2,"episodes":1}'; sleep 9`: "speaks version 2 of the protocol, and gad speaks version 1: see doc/environments.md",
		`echo '{"name":"x","version":1}'; sleep 9`:              `"{\"name\":\"x\",\"version\":1}" is no hello` + want,
		`echo '{"name":"","version":1,"episodes":1}'; sleep 9`:  `"{\"name\":\"\",\"version\":1,\"episodes\":1}" is no hello` + want,
		"echo hello; sleep 9":                                   `"hello" is not JSON: print one JSON object a line; messages for people go to standard error` + want,
		"head -c 50000000 /dev/zero; sleep 60":                  "no hello within 500ms",
		"yes":                                                   `"y" is not JSON: print one JSON object a line; messages for people go to standard error` + want,
		"sleep 60":                                              "no hello within 500ms",
		"trap '' TERM HUP; sleep 60 & sleep 60":                 "no hello within 500ms",
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			begun, limit := time.Now(), time.Minute
			if strings.HasPrefix(says, "no hello within") { // whatever else comes may take longer
				limit = 500 * time.Millisecond
			}
			p, err := open(context.Background(),
				Options{Command: command, Workers: 2, Timeout: time.Minute}, limit, quick)
			if whole := fmt.Sprintf("env: %q: %s", command, says); p != nil || err == nil ||
				err.Error() != whole || errors.Is(err, ErrFault) {
				t.Errorf("%v\nwant %s", err, whole)
			}
			if d := time.Since(begun); d > 2*time.Minute {
				t.Errorf("took %v", d)
			}
		})
	}
	t.Cleanup(func() {
		if left := children(t); len(left) > 0 {
			t.Errorf("processes are left: %q", left)
		}
	})
}

// A crash, an exit, an end of the output or silence in the middle: the child is started again, its
// episodes are played again, and nobody notices.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"exit", "kill", "hang", "close", "half"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel() // they mostly wait
			limit := 20 * time.Second
			if how == "hang" || how == "close" {
				if limit = 2 * time.Second; testing.Short() {
					t.Skip("waits: not with -short")
				}
			}
			p := pool(t, fake, 1, limit)
			want, err := play(p, 1, "a", "b", "c", "d", "e", "f")
			if err != nil {
				t.Fatal(err)
			}
			beside := p.Episode()
			defer beside.Close()
			if r, err := beside.Reset(context.Background(), 1, Row{Env: json.RawMessage(`{"a":1}`)}); err != nil || !reflect.DeepEqual(r, want[0]) {
				t.Fatal(r, err)
			}
			for i, turn := range []string{"a", "b", "c"} {
				if r, err := beside.Step(context.Background(), Turn{Text: turn}); err != nil ||
					!reflect.DeepEqual(r, want[1+i]) {
					t.Fatal(r, err)
				}
			}
			once := filepath.Join(t.TempDir(), "once")
			replies, err := play(p, 2, "a", how+" "+once, "c", "d", "e", "f")
			if err != nil || len(replies) != 7 || !replies[6].Done {
				t.Errorf("the episode that crashed once: %+v, %v", replies, err)
			}
			if _, err := os.Stat(once); err != nil {
				t.Error("it has not crashed")
			}
			for i, turn := range []string{"d", "e", "f"} {
				if r, err := beside.Step(context.Background(), Turn{Text: turn}); err != nil ||
					!reflect.DeepEqual(r, want[4+i]) {
					t.Errorf("the episode beside it: %+v, %v, want %+v", r, err, want[4+i])
				}
			}
		})
	}
}

// An episode that crashes the program each time is a fault after three starts; the others go on.
func TestPoison(t *testing.T) {
	t.Parallel()
	p := pool(t, fake, 1, 5*time.Second)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			turns := []string{"a", "b", "c", "d", "e", "f"}
			if i == 3 {
				turns[2] = "exit"
			}
			replies, err := play(p, uint64(i), turns...)
			if i != 3 && (err != nil || len(replies) != 7) {
				t.Errorf("episode %d: %+v, %v", i, replies, err)
			}
			if i == 3 && (len(replies) != 3 || !errors.Is(err, ErrFault) ||
				!strings.Contains(err.Error(), "turn 3: the program was started again 3 times ") ||
				!strings.HasSuffix(err.Error(), ": the program ended with exit status 3")) {
				t.Errorf("the poison: %+v, %v", replies, err)
			}
		})
	}
	all.Wait()
	// And one that is silent.
	short := pool(t, fake, 1, 500*time.Millisecond)
	if _, err := play(short, 1, "hang"); err == nil || !strings.Contains(err.Error(), "no reply within 500ms, so it was killed: make it faster, or raise the time limit (--timeout)") {
		t.Errorf("%v", err)
	}
	if replies, err := play(short, 1, "a"); err != nil || len(replies) != 2 {
		t.Errorf("the next episode: %+v, %v", replies, err)
	}
}

// altered returns r with another value in a field.
func altered(r Reply, field string) Reply {
	switch field {
	case "append":
		r.Append = append(r.Append, Message{Role: "user", Content: "more"})
	case "prompt":
		r.Append, r.Prompt = nil, r.Append
	case "reward":
		r.Reward++
	case "done":
		r.Done = !r.Done
	case "valid":
		r.Valid = !r.Valid
	case "anchor":
		r.Anchor += "?"
	case "label":
		r.Label += "?"
	}
	return r
}

// A reply that is another when it is played again, in one field alone, is said so.
func TestNotDeterministicInOneField(t *testing.T) {
	p := pool(t, fake, 1, time.Minute)
	typ := reflect.TypeFor[Reply]()
	for i := range typ.NumField() {
		field := strings.ToLower(typ.Field(i).Name)
		if reflect.DeepEqual(altered(Reply{Append: []Message{{Role: "user"}}}, field),
			Reply{Append: []Message{{Role: "user"}}}) {
			t.Fatalf("nothing alters %s", field)
		}
		file := filepath.Join(t.TempDir(), "once")
		e := p.Episode()
		if _, err := goOn(e, 1, "differ "+field+" "+file); err != nil {
			t.Fatal(err)
		}
		if replies, err := play(p, 2, "a", "exit "+file, "b"); err != nil || len(replies) != 4 {
			t.Fatalf("%+v, %v", replies, err)
		}
		_, err := e.Step(context.Background(), Turn{Text: "b"})
		if !errors.Is(err, ErrFault) || !strings.Contains(err.Error(),
			"turn 2: not deterministic: played again from its seed and turns, reply 1 is another") {
			t.Errorf("%s: %v", field, err)
		}
		e.Close()
	}
}

// An environment that is silent costs a few time limits, however many episodes wait, and one limit
// for all that come later, whether it answers a reset or not: after each limit the program is
// started again, once.
func TestSilence(t *testing.T) {
	const limit, episodes = 300 * time.Millisecond, 24
	for name, command := range map[string]string{
		"turns": fake,
		"all":   `head -n 1 >/dev/null; echo '{"name":"x","version":1,"episodes":64}'; sleep 600`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			starts := filepath.Join(t.TempDir(), "starts")
			p, err := open(context.Background(), Options{Command: "echo >>" + starts + "; " + command,
				Workers: 1, Timeout: limit}, time.Minute, quick)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			for round := range 3 {
				faults := make([]error, episodes)
				var all sync.WaitGroup
				for i := range episodes {
					all.Go(func() { _, faults[i] = play(p, uint64(i), "hang") })
				}
				all.Wait()
				for i, err := range faults {
					if !errors.Is(err, ErrFault) ||
						!strings.Contains(err.Error(), "no reply within 300ms") {
						t.Errorf("round %d, episode %d: %v", round, i, err)
					}
				}
				// A busy machine may give some of a round's requests so late that they have a limit
				// of their own.
				if n := len(readFile(t, starts)); n > 1+maxMute+2*round+6 {
					t.Errorf("round %d: the program was started %d times for %d episodes a round",
						round, n, episodes)
				}
			}
		})
	}
}

// An environment that answers otherwise when it is played again is said so.
func TestNotDeterministic(t *testing.T) {
	p := pool(t, fake, 1, 5*time.Second)
	e := p.Episode()
	defer e.Close()
	if _, err := e.Reset(context.Background(), 1, Row{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Step(context.Background(), Turn{Text: "pid"}); err != nil {
		t.Fatal(err)
	}
	if replies, err := play(p, 2, "a", "exit "+filepath.Join(t.TempDir(), "once"),
		"b"); err != nil || len(replies) != 4 {
		t.Fatalf("%+v, %v", replies, err)
	}
	_, err := e.Step(context.Background(), Turn{Text: "b"})
	if !errors.Is(err, ErrFault) || !strings.Contains(err.Error(), `turn 2: not deterministic: played again from its seed and turns, reply 1 is another: was "`) {
		t.Errorf("%v", err)
	}
}

// 64 episodes at once over two children that are killed again and again: the replies are those of a
// quiet pool.
func TestKillsInterleaved(t *testing.T) {
	t.Parallel()
	quiet, hard := pool(t, fake, 1, 20*time.Second), pool(t, fake, 2, 20*time.Second)
	turns := func(i int, dir string) (list []string) {
		for k := range 6 {
			text := fmt.Sprintf("turn %d of %d", k, i)
			if dir != "" && i%8 == k { // one episode in eight kills the child at each turn, once
				text = "kill " + filepath.Join(dir, fmt.Sprint(i, "-", k))
			} else if i%8 == k {
				text = "kill " + os.DevNull // exists: it has been done
			}
			list = append(list, text)
		}
		return list
	}
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			got, err := play(hard, uint64(i), turns(i, dir)...)
			want, errWant := play(quiet, uint64(i), turns(i, "")...)
			if err != nil || errWant != nil || len(got) != 7 || len(want) != 7 {
				t.Errorf("episode %d: %d and %d replies, %v, %v", i, len(got), len(want), err,
					errWant)
				return
			}
			for k := range i % 8 { // the kill's text is in all replies behind it
				if k < 7 && !reflect.DeepEqual(got[k], want[k]) {
					t.Errorf("episode %d, reply %d: %+v, want %+v", i, k, got[k], want[k])
				}
			}
			if k := i % 8; k > 5 && !reflect.DeepEqual(got, want) {
				t.Errorf("episode %d: %+v, want %+v", i, got, want)
			}
		})
	}
	all.Wait()
	if made, _ := os.ReadDir(dir); len(made) != 48 {
		t.Errorf("%d kills, want 48", len(made))
	}
}

// Much on standard error, a process that the program leaves behind, more episodes than places, the
// end of a context.
func TestPressure(t *testing.T) {
	p := pool(t, "PLACES=2 "+fake, 1, 20*time.Second)
	if replies, err := play(p, 1, "talk", "a"); err != nil || len(replies) != 3 {
		t.Errorf("%+v, %v", replies, err)
	}
	_, err := play(p, 1, "print x")
	if err == nil || !strings.HasSuffix(err.Error(), `; it said "all work and no play | all work and no play | all work and no play"`) {
		t.Errorf("%v", err)
	}
	if replies, err := play(p, 1, "breed", "a"); err != nil || len(replies) != 3 {
		t.Errorf("%+v, %v", replies, err)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if replies, err := play(p, uint64(i), "a", "b", "c", "d", "e", "f"); err != nil ||
				len(replies) != 7 {
				t.Errorf("%+v, %v", replies, err)
			}
		})
	}
	all.Wait()
	a, b, c := p.Episode(), p.Episode(), p.Episode()
	defer a.Close()
	defer b.Close()
	defer c.Close()
	for _, e := range []Episode{a, b} {
		if _, err := e.Reset(context.Background(), 1, Row{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Reset(ctx, 1, Row{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no place is free: %v", err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Step(ctx, Turn{Text: "hang"}); !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, ErrFault) {
		t.Errorf("a context that ends: %v", err)
	}
}

// The end of the pool's context ends calls that wait, and the children.
func TestContextOfPool(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	p, err := open(ctx, Options{Command: fake, Workers: 2, Timeout: time.Minute}, time.Minute,
		quick)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if _, err := play(p, uint64(i), "hang"); !errors.Is(err, context.Canceled) ||
				errors.Is(err, ErrFault) {
				t.Errorf("%v", err)
			}
		})
	}
	time.AfterFunc(100*time.Millisecond, cancel)
	all.Wait()
	p.Close()
	if left := children(t); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
}

// A crash with a line of standard output under way, many times over: no episode of a healthy
// environment is ever at fault for more than its own crash.
func TestEveryoneCrashesOnce(t *testing.T) {
	p := pool(t, fake, 2, 20*time.Second)
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			how := []string{"exit", "kill", "half"}[i%3]
			if replies, err := play(p, uint64(i), "a", how+" "+filepath.Join(dir, fmt.Sprint(i)),
				"c", "d", "e", "f"); err != nil || len(replies) != 7 {
				t.Errorf("episode %d: %d replies, %v", i, len(replies), err)
			}
		})
	}
	all.Wait()
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
