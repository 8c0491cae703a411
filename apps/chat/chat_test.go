package chat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"gad/apps/session"
	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/modeltest"
)

// longest is what the student of the tests takes, tokens.
const longest = 4 * chatRoom

// student is the folder of a small model that has learned to end its answers.
var student = sync.OnceValues(func() (string, error) {
	letters := filepath.Join("..", "..", "testdata", "letters")
	corpus, err := os.Open(filepath.Join(letters, "corpus.txt"))
	if err != nil {
		return "", err
	}
	defer corpus.Close()
	tok, err := tokenizer.Train(corpus, tokenizer.TrainOptions{VocabSize: 300})
	if err != nil {
		return "", err
	}
	be, err := cpu.New(cpu.Options{})
	if err != nil {
		return "", err
	}
	defer be.Close()
	m, err := model.New(be, model.Config{Architecture: "Qwen2", Hidden: 32, Layers: 2, Heads: 4,
		KVHeads: 2, HeadDim: 8, FFN: 64, Vocab: 300, MaxPosition: longest,
		RMSEps: 1e-6, RopeTheta: 1e4, QKVBias: true, InitRange: 0.02, TieEmbeddings: true},
		model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		return "", err
	}
	first, run := filepath.Join(root, "first"), filepath.Join(root, "run")
	if err := export.WriteFolder(vfs.OS, first, m, tok, "float32"); err != nil {
		return "", err
	}
	m.Close()
	cfg := config.StageDefaults(config.SFT)
	cfg.Model.Path, cfg.Trainer.Output, cfg.Trainer.TotalSteps = first, run, 60
	cfg.Data.TrainFiles, cfg.Data.TrainBatchSize, cfg.Data.MaxPrompt, cfg.Data.MaxResponse =
		[]string{filepath.Join(letters, "train.jsonl")}, 8, 64, 14
	cfg.Actor.Optim.LR = 5e-3
	t, err := trainer.Open(cfg, config.SFT,
		trainer.Options{FS: vfs.OS, Backend: be, Console: io.Discard})
	if err != nil {
		return "", err
	}
	return filepath.Join(run, "global_step_60", "actor"),
		errors.Join(t.Run(context.Background()), t.Close())
})

// root is a folder for the tests of this package.
var root string

func TestMain(m *testing.M) {
	var err error
	if root, err = os.MkdirTemp("", "gad-chat-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(root)
	os.Exit(code)
}

// roomy is the student's folder.
func roomy(t *testing.T) string {
	t.Helper()
	dir, err := student()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// chatter is a model to talk with, of its own, in so much memory; 0 is any.
func chatter(t *testing.T, dir string, limit int64) *session.Model {
	t.Helper()
	be, err := cpu.New(cpu.Options{Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	l, err := session.Load(be, session.Source{Path: dir}, model.LM)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// alone answers the last of messages by a call of Generate, which knows of no turn before.
func alone(t *testing.T, l *session.Model, messages []tokenizer.Message, step, limit int,
	s compute.Sampling) (text string, prompt []int32, c model.Completion) {
	t.Helper()
	prompt, err := l.Tokenizer.ChatPrompt(messages)
	if err != nil {
		t.Fatal(err)
	}
	limit = min(limit, l.Config().MaxPosition-len(prompt))
	out, err := l.Generate([][]int32{prompt}, []uint64{0},
		model.SampleOptions{N: 1, MaxNew: limit, EOS: l.Tokenizer.EOS(), Seed: 1,
			Step: uint64(step), Slots: 1, Sampling: s}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, words := l.Tokenizer.Stream(true), strings.Builder{}
	for _, id := range out[0][0].IDs {
		words.WriteString(stream.Next(id))
	}
	words.WriteString(stream.End())
	return words.String(), prompt, out[0][0]
}

// An engine that stays open for the conversation gives the answers that one for each turn
// gives, also after another system message and a reset.
func TestChatKeepsNoTurn(t *testing.T) {
	dir := roomy(t)
	l, sampled := chatter(t, dir, 0), compute.Sampling{Temperature: 1.3, TopP: 1}
	var script, want strings.Builder
	var system []tokenizer.Message
	var history []tokenizer.Message
	for i, line := range []string{
		"Add 1+2+3", "Reverse: e v o d", "Last letter of d m e o?", "/system Answer in verse.",
		"Add 1+2+3", "Add 4+2+3",
		"/reset", "Reverse: e v o d", "Reverse: e v o d", "/system", "/reset", "Add 1+2+3",
		"Add 1+2+3", "Give the largest: 2 7 9",
	} {
		script.WriteString(line + "\n")
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "/reset":
			history = nil
		case "/system":
			if system = nil; rest != "" {
				system = []tokenizer.Message{{Role: "system", Content: rest}}
			}
		default:
			before := len(history)
			history = append(history, tokenizer.Message{Role: "user", Content: line})
			text, _, _ := alone(t, l, append(system[:len(system):len(system)], history...), before,
				40, sampled)
			if text == "" {
				t.Errorf("line %d has no answer: the test shows little", i+1)
			}
			history = append(history, tokenizer.Message{Role: "assistant", Content: text})
			want.WriteString(text + "\n")
		}
	}
	out, said, err := talks(l, Options{Sampling: sampled, MaxNew: 40, Seed: 1}, script.String())
	if err != nil || out != want.String() {
		t.Errorf("%v\n got %q\nwant %q\n%s", err, out, want.String(), said)
	}
}

// talks holds a conversation by the lines of a script.
func talks(l *session.Model, o Options, script string) (out, said string, err error) {
	var printed, messages strings.Builder
	t := &talk{s: &session.Session{Out: &printed, Err: &messages}, o: o, m: l, system: o.System,
		speaker: &speaker{m: l.Model}, in: strings.NewReader(script)}
	defer t.speaker.close()
	err = t.run()
	return printed.String(), messages.String(), err
}

// Lines of a pipe that get no answer are told, and why; a message that has no room is not the fault
// of the conversation before it. Behind them the conversation goes on, or begins anew.
func TestLinesWithoutAnswer(t *testing.T) {
	l := chatter(t, modeltest.Student(t), 0)
	o := Options{MaxNew: 14, Seed: 1}
	first, _, err := talks(l, o, "Add 1+2+3\n")
	if err != nil || len(first) < 2 {
		t.Fatalf("%q, %v", first, err)
	}
	long := strings.Repeat("Add 1+2+3 ", 40)
	for _, c := range []struct{ script, system, out, said, err string }{
		{"/frobnicate\n\nAdd 1+2+3", "", first,
			"gad: chat: /frobnicate: is not known: /help lists the commands\n",
			"chat: line 1 got no answer"},
		{"Add 1+2+3\n/exit\nAdd 1+2+3\n", "", first, "", ""},
		{long + "\n/exit\nAdd 1+2+3\n", "", "",
			"gad: chat: the message of line 1 has 417 tokens, the model takes 128 with the answer: " +
				"shorten it\n", "chat: line 1 got no answer"},
		{"Add 1+2+3\n", long, "",
			"gad: chat: the message of line 1 with the system message has 435 tokens, the model takes " +
				"128 with the answer: shorten one of them\n", "chat: line 1 got no answer"},
		{"\xff\n", "", "", "", "chat: standard input is not UTF-8 text"},
	} {
		o.System = c.system
		out, said, err := talks(l, o, c.script)
		if out != c.out || said != c.said || (err == nil) != (c.err == "") ||
			err != nil && err.Error() != c.err {
			t.Errorf("%.30q: prints %q, says %q, %v\nwant %q, %q, %s", c.script, out, said, err,
				c.out, c.said, c.err)
		}
	}
	// A conversation that the model has no room for is not answered, and can begin anew.
	o.System = ""
	out, said, err := talks(l, o, strings.Repeat("Add 1+2+3\n", 20)+"/reset\nAdd 1+2+3\n")
	n := strings.Count(said, " tokens, the model takes 128 with the answer: /reset begins a new one\n")
	if err == nil || n < 2 || !strings.Contains(said,
		"gad: chat: the conversation with the message of line 20 has ") ||
		!strings.HasSuffix(out, first) || !strings.HasPrefix(err.Error(),
		fmt.Sprintf("chat: %d lines got no answer: %d, %d, ", n, 21-n, 22-n)) {
		t.Errorf("prints %q, says %s, %v", out, said, err)
	}
}

// converse has a speaker answer messages, each with all that was said before, and compares its
// answers with those that know of no turn before. found and computed are the tokens of each
// turn's prompt.
func converse(t *testing.T, s *speaker, l *session.Model, limits []int,
	look func(turn int)) (found, computed []int) {
	t.Helper()
	var history []tokenizer.Message
	// canonical tokens: what is sampled may not be what its text is read as
	greedy := compute.Sampling{}
	for turn, limit := range limits {
		history = append(history,
			tokenizer.Message{Role: "user", Content: fmt.Sprintf("Add %d+2+3", turn)})
		text, prompt, want := alone(t, l, history, 2*turn, limit, greedy)
		had := -1
		got, ended, err := s.answer(
			&model.Request{Prompt: prompt, N: 1, MaxNew: limit, EOS: l.Tokenizer.EOS(), Seed: 1,
				Step: uint64(2 * turn), Sampling: greedy,
				Found: func(tokens int) { had = tokens },
				Token: func(int, model.Token) bool { return true },
			})
		if err != nil || !ended || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("turn %d: %v, %v, want %v (%v)", turn, got, ended, want, err)
		}
		found, computed = append(found, had), append(computed, len(prompt)-had)
		history = append(history, tokenizer.Message{Role: "assistant", Content: text})
		if look != nil {
			look(turn)
		}
	}
	return found, computed
}

// The tenth turn computes what is new in it, not the conversation.
func TestChatComputesWhatIsNew(t *testing.T) {
	dir := roomy(t)
	s := &speaker{m: chatter(t, dir, 0).Model}
	defer s.close()
	engines := map[*model.Engine]bool{}
	found, computed := converse(t, s, chatter(t, dir, 0), slices.Repeat([]int{30}, 10),
		func(int) { engines[s.engine] = true })
	t.Logf("found %v, computed %v", found, computed)
	if len(engines) != 1 {
		t.Errorf("%d engines for one conversation", len(engines))
	}
	// A page is 16 tokens, and not even the rest of one is computed again: of each turn before
	// only its last token, which was drawn and never passed through the model.
	for turn := 1; turn < len(found); turn++ {
		if before := found[turn-1] + computed[turn-1]; found[turn] < before ||
			computed[turn] > computed[1]+1 {
			t.Errorf("turn %d: %d tokens found and %d computed; the prompt before had %d", turn,
				found[turn], computed[turn], before)
		}
	}
	if all := found[9] + computed[9]; all < 10*computed[9] {
		t.Errorf("the tenth turn computes %d of %d tokens", computed[9], all)
	}
}

// A conversation that has outgrown the cache is computed once more, for a larger one.
func TestChatOutgrows(t *testing.T) {
	dir := roomy(t)
	s := &speaker{m: chatter(t, dir, 0).Model}
	defer s.close()
	var longest []int
	found, _ := converse(t, s, chatter(t, dir, 0), []int{30, 30, chatRoom, 30, 3 * chatRoom, 30},
		func(int) { longest = append(longest, s.longest) })
	for turn, grows := range []bool{true, false, true, false, true, false} {
		if (found[turn] == 0) != grows || turn > 0 && (longest[turn] > longest[turn-1]) != grows {
			t.Errorf("turn %d: %d tokens found, room for %d, before for %d: grows is %v", turn,
				found[turn], longest[turn], longest[max(turn-1, 0)], grows)
		}
	}
}

// Where there is no memory for a larger cache, that of one answer does.
func TestChatInLittleMemory(t *testing.T) {
	dir := roomy(t)
	measured := chatter(t, dir, 0)
	weights, _ := measured.Backend.Memory()
	limits := slices.Repeat([]int{30}, 6)
	converse(t, &speaker{m: chatter(t, dir, 0).Model}, measured, limits, nil)
	_, most := measured.Backend.Memory()
	const spare = 1 << 14 // two pages of this model, and what the peak is rounded by
	// The larger cache may be what there is no memory for, or then what is computed.
	fits := 0
	for extra := int64(0); fits < 2; extra += 1 << 15 {
		cramped := &speaker{m: chatter(t, dir, most+spare+extra).Model}
		converse(t, cramped, chatter(t, dir, 0), limits, nil)
		if cramped.longest >= chatRoom {
			fits++
		} else if fits > 0 {
			t.Errorf("%d bytes more: room for %d tokens", extra, cramped.longest)
		}
		if extra == 0 && fits > 0 || extra > 1<<22 {
			t.Fatalf("%d bytes more: room for %d tokens: the test shows nothing", extra,
				cramped.longest)
		}
		cramped.close()
	}
	// Of even less it says so, and can be asked anew.
	l := chatter(t, dir, weights+spare)
	s := &speaker{m: l.Model}
	defer s.close()
	for range 2 {
		_, ended, err := s.answer(
			&model.Request{Prompt: slices.Repeat([]int32{7}, 200), N: 1, MaxNew: 30,
				Token: func(int, model.Token) bool { return true }})
		if ended || !errors.Is(err, model.ErrMemory) {
			t.Errorf("ended %v, %v", ended, err)
		}
	}
}

// An answer that is stopped leaves the cache in order: what was said of it is found.
func TestChatStopped(t *testing.T) {
	dir := roomy(t)
	l := chatter(t, dir, 0)
	s := &speaker{m: chatter(t, dir, 0).Model}
	defer s.close()
	prompt, err := l.Tokenizer.ChatPrompt(
		[]tokenizer.Message{{Role: "user", Content: "Reverse: e v o d"}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ids []int32, most int) (told []int32, found int, ended bool) {
		_, ended, err := s.answer(
			&model.Request{Prompt: ids, N: 1, MaxNew: 40, Seed: 3,
				Sampling: compute.Sampling{Temperature: 1},
				Found:    func(n int) { found = n },
				Token: func(_ int, token model.Token) bool {
					told = append(told,
						token.ID)
					return true
				},
				Gone: func() bool { return len(told) >= most },
			})
		if err != nil {
			t.Fatal(err)
		}
		return told, found, ended
	}
	whole, _, _ := ask(prompt, 1<<10)
	s.close()
	part, found, ended := ask(prompt, 7)
	if ended || found != 0 || !slices.Equal(part, whole[:7]) {
		t.Errorf("stopped after %v (%v), %d found, want the beginning of %v", part, ended, found,
			whole)
	}
	next := slices.Concat(prompt, part, []int32{9, 9})
	want, err := l.Generate([][]int32{next}, []uint64{0},
		model.SampleOptions{N: 1, MaxNew: 40, Seed: 3, Sampling: compute.Sampling{Temperature: 1}},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, found, ended := ask(next, 1<<10); !ended || found != len(prompt)+len(part)-1 ||
		!slices.Equal(got, want[0][0].IDs) {
		t.Errorf("%v (%v), %d of %d tokens found, want %v", got, ended, found, len(next),
			want[0][0].IDs)
	}
}
