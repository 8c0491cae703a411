package fidelity

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/apps/session"
	"gad/data"
	"gad/device"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/modeltest"
)

// warmup makes a run of one step of the discriminator alone.
func warmup(t *testing.T, settings ...string) string {
	t.Helper()
	be := modeltest.Backend(t)
	run := filepath.Join(t.TempDir(), "run")
	c := config.StageDefaults(config.Warmup)
	c.Model.Path, c.Data.TrainFiles, c.Trainer.Output =
		modeltest.Student(t), []string{modeltest.Letters("train.jsonl")}, run
	if err := c.Load("", append([]string{"trainer.total_steps=1", "trainer.critic_warmup=1",
		"data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=10",
		"rollout.n=2", "rollout.temperature=0.9", "critic.truncated=include"},
		settings...)...); err != nil {
		t.Fatal(err)
	}
	tr, err := trainer.Open(c, config.Warmup, trainer.Options{Backend: be})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if err := tr.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return run
}

func atWork(out *bytes.Buffer) *session.Session {
	return &session.Session{Out: out, Err: &bytes.Buffer{}, FS: vfs.OS,
		Console: report.NewConsole(&bytes.Buffer{}, false),
		Signals: func(_, _ func(string)) (context.Context, func()) {
			return context.Background(), func() {}
		}}
}

func rows() session.Rows {
	cols := data.DefaultColumns()
	return session.Rows{Command: "fidelity", Paths: []string{modeltest.Letters("test.jsonl")},
		Format: "auto", Content: cols.Content, Answer: cols.Teacher, Limit: 12}
}

// A likelihood that is the teacher, untrained, is the truth; its run says at which temperature and
// length the answers are; the file has what the figures are made of; alone,
// beside the student of its checkpoint, the discriminator gives the same scores.
func TestRun(t *testing.T) {
	run := warmup(t, "critic.head=likelihood", "model.reward_path="+modeltest.Blank(t),
		"critic.optim.lr=0")
	value := warmup(t)
	path := filepath.Join(t.TempDir(), "answers.jsonl")
	o := Options{Critics: []string{run, filepath.Join(value, "global_step_1", "critic")},
		Teacher: modeltest.Blank(t), Rows: rows(), N: 4, TeacherTemperature: 0.9, MaxTokens: 512,
		Seed: 3, JSON: true, Output: path, Device: device.Options{Name: "cpu", Threads: 1}}
	var out bytes.Buffer
	if err := Run(atWork(&out), o); err != nil {
		t.Fatal(err)
	}
	var got Result
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Temperature != 0.9 || got.Answers != 4 || got.Prompts != 12 || len(got.Rewards) != 6 {
		t.Fatalf("%+v", got)
	}
	if f := got.Rewards[4]; f.Reward != run || *f.Rho < 0.999 || *f.Pairs < 0.999 || f.Acc == nil {
		t.Errorf("the teacher's likelihood: rho %g, pairs %g", *f.Rho, *f.Pairs)
	}
	if f := got.Rewards[5]; f.RhoCI95 == nil || math.Abs(*f.Rho) > 0.9 {
		t.Errorf("a value head after one step: %+v", f)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var whole []answer // those that gad score reads as they are: not cut
	for line := range strings.Lines(string(raw)) {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		if len(a.ResponseIDs) == 0 || len(a.ResponseIDs) > 10 || len(a.Scores) != 2 {
			t.Fatalf("%s", line)
		}
		if !a.Truncated {
			whole = append(whole, a)
		}
	}
	if len(whole) < 5 {
		t.Fatalf("%d answers have an end", len(whole))
	}
	be := modeltest.Backend(t)
	critic, err := atWork(&out).LoadCritic(be,
		session.Source{Path: filepath.Join(run, "global_step_1", "critic")}, nil, "", 512)
	if err != nil {
		t.Fatal(err)
	}
	defer critic.Close()
	var seqs []model.Seq
	for _, a := range whole {
		seqs = append(seqs, model.Answer(slices.Concat(a.PromptIDs, a.ResponseIDs),
			len(a.PromptIDs)))
	}
	scores, err := critic.Score(seqs) // beside the student of its checkpoint, as gad score does
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range scores {
		if want := whole[i].Scores[run]; math.Abs(float64(x)-want) > 1e-4 {
			t.Errorf("answer %d: alone it has the score %g, in the figures %g", i, x, want)
		}
	}
}

// Without a discriminator the rewards that need none are measured; the teacher may read a message
// that the student does not, and then is another.
func TestTrivialRewards(t *testing.T) {
	rho := map[string]float64{}
	for _, system := range []string{"", "Count backwards."} {
		var out bytes.Buffer
		if err := Run(atWork(&out), Options{Student: modeltest.Student(t), Teacher: modeltest.Student(t),
			Rows: rows(), N: 3, System: system, TeacherTemperature: 0.5, MaxPrompt: 64,
			MaxResponse: 10, MaxTokens: 512, Seed: 3, JSON: true,
			Device: device.Options{Name: "cpu", Threads: 1}}); err != nil {
			t.Fatal(err)
		}
		var got Result
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Rewards) != 4 || math.Abs(*got.Rewards[0].Rho-1) > 1e-9 {
			t.Fatalf("%s", out.String())
		}
		rho[system] = *got.Rewards[1].Rho
	}
	// a colder copy prefers what the student finds likely
	if rho[""] < 0.5 || rho[""] == rho["Count backwards."] {
		t.Errorf("fluency and the truth: %v", rho)
	}
}

func TestMistakes(t *testing.T) {
	short := filepath.Join(t.TempDir(), "short")
	if err := os.CopyFS(short, os.DirFS(modeltest.Student(t))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(short, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.Replace(raw, []byte(`embeddings": 128`), []byte(`embeddings": 44`), 1)
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"--teacher: fidelity: row 10: prompt has 40 tokens: with an answer of 10 that is more than the 44 of the model: give --max-response-length 4": {
			Student: modeltest.Student(t), Teacher: short, MaxPrompt: 64, MaxResponse: 10},
		"--teacher: data: row 10: prompt has 57 tokens, the model takes 44": {Student: modeltest.Student(t), Teacher: short,
			MaxPrompt: 64, MaxResponse: 10, System: "Be brief."},
		"--model is missing": {},
		"is a language model, not a discriminator": {Critics: []string{modeltest.Student(t)},
			Student: modeltest.Student(t)},
		"figures need at least 2 prompts": {Student: modeltest.Student(t), MaxPrompt: 1},
	} {
		o.Teacher = cmp.Or(o.Teacher, modeltest.Student(t))
		o.Rows, o.N, o.TeacherTemperature, o.MaxTokens, o.Device =
			rows(), 2, 1, 512, device.Options{Name: "cpu", Threads: 1}
		var out bytes.Buffer
		if err := Run(atWork(&out), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
