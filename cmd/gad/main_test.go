package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/urfave/cli/v2"

	"gad/internal/conf"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
	"gad/trainer/config"
)

var update = flag.Bool("update", false, "rewrite golden files")

// gad runs a command line as the program does.
func gad(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(append([]string{"gad"}, args...), &out, &err)
	return code, out.String(), err.String()
}

// must runs a command line that has to succeed and returns what it prints.
func must(t testing.TB, args ...string) (stdout, stderr string) {
	t.Helper()
	code, out, err := gad(args...)
	if code != exitDone {
		t.Fatalf("gad %s: exit status %d\n%s%s", strings.Join(args, " "), code, out, err)
	}
	return out, err
}

// refused runs a command line that has to end with an exit status and to say a text.
func refused(t testing.TB, want int, text string, args ...string) {
	t.Helper()
	if code, _, said := gad(args...); code != want || !strings.Contains(said, text) {
		t.Errorf("gad %s: exit status %d, want %d and %q\n%s", strings.Join(args, " "), code, want,
			text, said)
	}
}

// words returns the words of a command line, in which what stands between quotation marks is one
// and SMALL is the settings of the test's runs.
func words(line string) (list []string) {
	for i, part := range strings.Split(strings.ReplaceAll(line, "SMALL", strings.Join(small, " ")),
		`"`) {
		if i%2 == 1 {
			list = append(list, part)
		} else {
			list = append(list, strings.Fields(part)...)
		}
	}
	return list
}

// does runs a command line that has to succeed and returns what it prints and says.
func does(t testing.TB, line string) (printed, said string) {
	t.Helper()
	return must(t, words(line)...)
}

// slow leaves a test out of the quick cycle, go test -short.
func slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
}

// small are the settings of the test's runs.
var small = []string{"data.train_batch_size=4", "data.max_prompt_length=64",
	"data.max_response_length=14", "rollout.n=4", "rollout.temperature=1",
	"actor.max_token_len=512", "critic.max_token_len=512", "critic.optim.lr=1e-3",
	"trainer.save_samples=1"}

func stage(name string, flags ...string) []string {
	return append(append([]string{name}, flags...), small...)
}

// stage returns the command line of a stage on the fixture's student and rows, into a run's folder.
func (f *fixture) stage(name, run string, steps int, more ...string) []string {
	return slices.Concat(stage(name, "--model", f.path("student"), "--data", f.path("train.arrow"),
		"--output", run, "--steps", fmt.Sprint(steps)), more)
}

// The fixture is made by the program's own commands: init, data split, sft,
// warmup. It is the newcomer's way, and tested as it is built.
type fixture struct {
	root     string
	programs string            // folder of what is built
	printed  map[string]string // by command
}

func (f *fixture) path(parts ...string) string {
	return filepath.Join(append([]string{f.root}, parts...)...)
}

var fixed fixture

const tinyConfig = `{"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,
"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":300,"max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":10000,
"tie_word_embeddings":true,"torch_dtype":"bfloat16","hidden_act":"silu"}`

// wideConfig is of a model whose layers are large enough for moments in 8 bits.
const wideConfig = `{"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":300,"max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":10000,
"tie_word_embeddings":true,"torch_dtype":"float32","hidden_act":"silu"}`

func TestMain(m *testing.M) {
	flag.Parse()
	vfs.OS = vfstest.NoSync(vfs.OS) // of commands within this process
	for _, name := range []string{"HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN",
		"HF_TOKEN_PATH", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
		"XDG_CACHE_HOME"} {
		os.Unsetenv(name) // whoever runs the tests may have a hub's cache and a token
	}
	os.Setenv("HF_HOME", "/nowhere")
	os.Setenv("HF_HUB_CACHE", "/nowhere")
	os.Setenv("OMPI_ALLOW_RUN_AS_ROOT", "1") // as containers do
	os.Setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
	programs, err := os.MkdirTemp("", "gad-programs-") // memory may allow none
	if err != nil {
		panic(err)
	}
	hostile.Quick()
	if !hostile.Long() { // small runs leave much garbage
		debug.SetGCPercent(400)
		os.Setenv("GOGC", "400")
	}
	root, err := os.MkdirTemp("", "gad-cmd-")
	if err != nil {
		panic(err)
	}
	fixed = fixture{root: root, programs: programs, printed: map[string]string{}}
	code := m.Run()
	os.RemoveAll(root)
	os.RemoveAll(programs)
	os.Exit(code)
}

var build = sync.OnceValue(func() error {
	f := &fixed
	files := map[string]string{"config.json": tinyConfig, "wide.json": wideConfig}
	for name, from := range map[string]string{"corpus.txt": "corpus.txt",
		"rows.jsonl": "train.jsonl"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "testdata", "letters", from))
		if err != nil {
			return err
		}
		files[name] = string(raw)
	}
	for name, content := range files {
		if err := os.WriteFile(f.path(name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, line := range []string{
		"init --config F/config.json --corpus F/corpus.txt --output F/student",
		"init --config F/wide.json --corpus F/corpus.txt --output F/wide",
		"data convert --data F/rows.jsonl --output F/rows.parquet",
		"data split --data F/rows.parquet --first F/train.arrow --second F/test.jsonl " +
			"--fraction 0.8",
		"sft --model F/student --data F/train.arrow --val-data F/test.jsonl --output F/sft " +
			"--steps 60 SMALL actor.optim.lr=5e-3 data.train_batch_size=8",
		"warmup --model F/sft/global_step_60/actor --data F/train.arrow --output F/warmup " +
			"--steps 4 --critic-warmup 2 SMALL",
		"train --resume F/warmup --data F/train.arrow --output F/train --steps 3",
		"dpo --model F/sft/global_step_60/actor --data F/train.arrow --val-data F/test.jsonl " +
			"--output F/dpo --steps 2 SMALL",
	} {
		args := words(strings.ReplaceAll(line, "F/", f.root+"/"))
		code, out, err := gad(args...)
		if code != exitDone {
			return fmt.Errorf("gad %s: exit status %d\n%s%s", strings.Join(args, " "), code, out,
				err)
		}
		f.printed[args[0]] += out + err
	}
	return nil
})

// built is the path of the built program; -short tests do not build it.
func built(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts the program: not with -short")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// asRelease are the linker's flags that scripts/release.sh sets, for TestVersionOfRelease.
const asRelease = "-X main.version=v9.8.7 -X main.commit=0123456789abcdef0123456789abcdef01234567"

// binary builds the program once for all tests, with MPI, which only ranks use, and with cgo as the
// tests have it: without, what a newcomer has compiled would be compiled again. .ci/run mpi builds
// it without, and release without MPI.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(fixed.programs, "gad")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-tags", "mpi", "-ldflags",
		"-s -w "+asRelease, "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func ready(t testing.TB) *fixture {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return &fixed
}

// linked is an empty folder, the current one until the test ends, with links to parts of the
// fixture. "a=b" is a link b to a.
func linked(t *testing.T, names ...string) (f *fixture, work string) {
	t.Helper()
	f, work = ready(t), t.TempDir()
	t.Chdir(work)
	for _, name := range names {
		from, to, ok := strings.Cut(name, "=")
		if !ok {
			to = from
		}
		if err := os.Symlink(f.path(from), to); err != nil {
			t.Fatal(err)
		}
	}
	return f, work
}

// tree is every file below dir by its name; a missing folder has none.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		name, _ := filepath.Rel(dir, path)
		if err != nil || !d.Type().IsRegular() {
			files[name] = d.Type().String()
			return err
		}
		raw, err := os.ReadFile(path)
		files[name] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The list of commands, flags and settings is what users rely on: a change of it
// shows here (rewrite with -update).
func TestSurface(t *testing.T) {
	var b strings.Builder
	var walk func(prefix string, c *cli.Command)
	walk = func(prefix string, c *cli.Command) {
		name := prefix + " " + c.Name
		if c.Usage == "" {
			t.Errorf("%s: no usage", name)
		}
		fmt.Fprintln(&b, name)
		for _, f := range c.Flags {
			d := f.(cli.DocGenerationFlag)
			if d.GetUsage() == "" {
				t.Errorf("%s --%s: no usage", name, f.Names()[0])
			}
			fmt.Fprintln(&b, strings.TrimRight(
				fmt.Sprintf("%s --%s %s", name, strings.Join(f.Names(), " -"), d.GetDefaultText()),
				" "))
		}
		for _, sub := range c.Subcommands {
			walk(name, sub)
		}
	}
	p := &program{}
	for _, c := range p.app().Commands {
		walk("gad", c)
	}
	defaults := config.Default()
	for _, s := range conf.Describe(&defaults) {
		fmt.Fprintf(&b, "%s = %s (%s)\n", s.Key, s.Default, strings.Join(s.Choices, "|"))
	}
	path := filepath.Join("testdata", "surface.txt")
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755),
			os.WriteFile(path, []byte(b.String()), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want := readFile(t, path)
	if got := b.String(); got != want {
		g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
		for i := range min(len(g), len(w)) {
			if g[i] != w[i] {
				t.Fatalf(
					"line %d is now %q, was %q: if that is meant, run with -update and tell users",
					i+1, g[i], w[i])
			}
		}
		t.Fatalf("%d lines now, were %d: if that is meant, run with -update and tell users", len(g),
			len(w))
	}
}

// Flags set the settings of their names.
func TestStageFlagsNameSettings(t *testing.T) {
	known := map[string]bool{}
	defaults := config.Default()
	for _, s := range conf.Describe(&defaults) {
		known[s.Key] = true
	}
	for _, f := range stageFlags {
		if !known[f.key] {
			t.Errorf("--%s sets %q, which is no setting", f.name, f.key)
		}
	}
}

// What a run prints and writes, from init to train.
func TestPipeline(t *testing.T) {
	f := ready(t)
	for command, texts := range map[string][]string{
		"init": {"Qwen2 with", "tokenizer of 300 tokens"},
		"data": {"rows.parquet: 50 rows", "train.arrow: 40 rows", "test.jsonl: 10 rows"},
		"sft":  {"sft of", "step 60/60", "sft_loss", "rouge_l", "done: "},
		"warmup": {"prompts per step x 4 answers", "step 1/4  d_acc", "d_loss",
			"step 4/4  sft_loss"},
		"train": {"train from", "clip ", "kl ", "tok/s"},
		"dpo": {"dpo of", "step 1/2  dpo_loss 0.693  acc 0.00", "step 2/2  dpo_loss", "rouge_l",
			"done: "},
	} {
		for _, text := range texts {
			if !strings.Contains(f.printed[command], text) {
				t.Errorf("gad %s does not print %q:\n%s", command, text, f.printed[command])
			}
		}
	}
	for _, name := range []string{"config.yaml", "metrics.jsonl", "log.jsonl", "tb",
		"samples/step_3.jsonl", "global_step_3/actor/model.safetensors",
		"global_step_3/critic/config.json", "global_step_3/trainer.json",
		"global_step_3/manifest.json", "latest_checkpointed_iteration.txt"} {
		if _, err := os.Stat(f.path("train", filepath.FromSlash(name))); err != nil {
			t.Error(err)
		}
	}
	// The settings of the warm-up are inherited; the length is the stage's own.
	resolved := readFile(t, f.path("train", "config.yaml"))
	for _, line := range []string{"  train_batch_size: 4\n", "  total_steps: 3\n",
		"  critic_warmup: 0\n", "  n: 4\n", "  total_epochs: 2\n"} {
		if !strings.Contains(resolved, line) {
			t.Errorf("train's config.yaml lacks %q:\n%s", line, resolved)
		}
	}
}

// A finished run says so and does nothing; a longer one goes on, equal to one
// that was that long from the beginning.
func TestGoOn(t *testing.T) {
	linked(t, "warmup", "train.arrow")
	const line = "train --resume warmup --data train.arrow --output "
	does(t, line+"whole --steps 4")
	does(t, line+"run --steps 2")
	before := tree(t, "run/global_step_2")
	for _, again := range []string{line + "run --steps 2", "train --resume run"} {
		if _, said := does(t, again); !strings.Contains(said,
			"already finished after 2 steps of 2 (") || strings.Count(said, "\n") != 1 {
			t.Errorf("gad %s says\n%s", again, said)
		}
	}
	if after := tree(t, "run/global_step_2"); len(after) != len(before) || len(before) < 10 {
		t.Errorf("%d files in the checkpoint, were %d", len(after), len(before))
	}
	if _, said := does(t, "train --resume run --steps 4"); !strings.Contains(said,
		"resuming after step 2 of 4") {
		t.Errorf("says\n%s", said)
	}
	equalRuns(t, "run", "whole", 4)
}

// equalRuns wants equal metrics, timings apart, and equal last checkpoints.
func equalRuns(t *testing.T, got, want string, step int) {
	t.Helper()
	var metrics [2]string
	for i, run := range []string{got, want} {
		lines, err := report.StripTimings([]byte(readFile(t, filepath.Join(run, "metrics.jsonl"))))
		if err != nil {
			t.Fatal(err)
		}
		metrics[i] = string(lines)
	}
	if metrics[0] != metrics[1] || strings.Count(metrics[0], "\n") != step {
		t.Errorf("metrics\n%s\nwant\n%s", metrics[0], metrics[1])
	}
	name := fmt.Sprintf("global_step_%d", step)
	a, b := tree(t, filepath.Join(got, name)), tree(t, filepath.Join(want, name))
	if len(a) != len(b) || len(a) < 10 {
		t.Errorf("%d files in the checkpoint, want %d", len(a), len(b))
	}
	for file := range b {
		if a[file] != b[file] {
			t.Errorf("%s/%s differs", name, file)
		}
	}
}

// put writes a file.
func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readFile returns the text of a file, which there must be.
func readFile(t testing.TB, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// decode reads a JSON text.
func decode(t testing.TB, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %.3000s", err, text)
	}
}

// fileText returns the text of a file; a missing file has none.
func fileText(path string) string {
	raw, _ := os.ReadFile(path)
	return string(raw)
}

func lines(path string) int { return strings.Count(fileText(path), "\n") }

// metricsOf returns the numeric metrics of a run, one map a step.
func metricsOf(t *testing.T, run string) (rows []map[string]float64) {
	t.Helper()
	for line := range strings.Lines(fileText(filepath.Join(run, "metrics.jsonl"))) {
		var all map[string]any
		decode(t, line, &all)
		row := map[string]float64{}
		for name, x := range all {
			if x, ok := x.(float64); ok {
				row[name] = x
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// metric returns one metric of a run, a value a step; NaN for a step without it.
func metric(t *testing.T, run, name string) (list []float64) {
	t.Helper()
	for _, row := range metricsOf(t, run) {
		x, ok := row[name]
		if !ok {
			x = math.NaN()
		}
		list = append(list, x)
	}
	return list
}
