package conf

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/internal/hostile"
)

type optim struct {
	LR    float64 `yaml:"lr" doc:"learning rate" min:"0" max:"1"`
	Steps int     `yaml:"steps" doc:"warm-up steps; 0: none" min:"0"`
}

type shared struct {
	Seed uint64 `yaml:"seed" doc:"seed of all randomness"`
}

// config has every kind of leaf, two levels of groups and an inlined struct.
type config struct {
	Name   string `yaml:"name" doc:"name of the run | shown"`
	Shadow int    `yaml:"-"`
	Actor  struct {
		Optim optim    `yaml:"optim"`
		Mode  string   `yaml:"loss_mode" doc:"policy loss" choices:"vanilla,gspo,cispo" unproven:"vanilla,cispo"`
		KL    bool     `yaml:"use_kl_loss" doc:"KL term in the loss"`
		Small int8     `yaml:"small" doc:"a small integer" unproven:"all"`
		Tags  []string `yaml:"tags" doc:"labels"`
	} `yaml:"actor"`
	Critic struct {
		Optim  optim     `yaml:"optim"`
		Levels []float64 `yaml:"levels" doc:"levels" min:"0"`
		Kinds  []string  `yaml:"kinds" doc:"kinds" choices:"bt,bce"`
	} `yaml:"critic"`
	Trainer struct {
		Shared shared `yaml:",inline"`
		Steps  int64  `yaml:"total_steps" doc:"steps" min:"1"`
	} `yaml:"trainer"`
}

func defaults() *config {
	c := &config{Name: "run"}
	c.Actor.Optim.LR = 1e-6
	c.Actor.Mode = "gspo"
	c.Actor.Tags = []string{"a"}
	c.Critic.Levels = []float64{0.5, 1}
	c.Trainer.Steps = 200
	c.Trainer.Shared.Seed = 1
	return c
}

func write(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "run.yaml")
	if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return p
}

// load returns the error's text with the folder of the file taken away.
func load(t *testing.T, c *config, text string, overrides []string, flags []Flag) string {
	t.Helper()
	path := ""
	if text != "" {
		path = write(t, text)
	}
	err := Load(c, path, overrides, flags)
	if err == nil {
		return ""
	}
	var ps Problems
	if !errors.As(err, &ps) {
		t.Fatalf("%T is not Problems: %v", err, err)
	}
	if path == "" {
		return err.Error()
	}
	return strings.ReplaceAll(err.Error(), path, "run.yaml")
}

func TestPrecedence(t *testing.T) {
	c := defaults()
	got := load(t, c, `
name: from file
actor:
  optim: {lr: 1e-5, steps: 7}
  loss_mode: vanilla
  tags: [x, 'y z']
critic:
  levels:
    - 1
    - .25
trainer:
  seed: 18446744073709551615
  total_steps: +30
`, []string{"actor.optim.lr=2e-5", "trainer.total_steps=40", "trainer.total_steps=50", "actor.tags=[p, q]"},
		[]Flag{{"actor.optim.lr", "3e-5", "--lr"}, {"actor.use_kl_loss", "true", "kl"}})
	if got != "" {
		t.Fatal(got)
	}
	want := defaults()
	want.Name = "from file"
	want.Actor.Optim = optim{3e-5, 7}
	want.Actor.Mode = "vanilla"
	want.Actor.KL = true
	want.Actor.Tags = []string{"p", "q"}
	want.Critic.Levels = []float64{1, 0.25}
	want.Trainer.Shared.Seed = math.MaxUint64
	want.Trainer.Steps = 50
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestNothingGiven(t *testing.T) {
	for _, text := range []string{"", "\n", "actor:\n", "# only a comment\n", "---\n", "null\n",
		"{}\n", "\ufeff"} {
		c := defaults()
		if got := load(t, c, text, nil, nil); got != "" || !reflect.DeepEqual(c, defaults()) {
			t.Errorf("%q: %s %+v", text, got, c)
		}
	}
}

// A template states what differs from the defaults, and all else in comments; it loads as
// it stands and with the comments taken away.
func TestTemplate(t *testing.T) {
	set := defaults()
	set.Actor.Optim.LR = 0.25
	text, err := Template(set, defaults())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n    lr: 0.25\n") ||
		strings.Count(string(text), "\n    lr: ")+strings.Count(string(text), "\n    #lr: ") != 2 {
		t.Errorf("template:\n%s", text)
	}
	c := defaults()
	if got := load(t, c, string(text), nil, nil); got != "" || !reflect.DeepEqual(c, set) {
		t.Errorf("it loads as %+v: %s", c, got)
	}
	all := regexp.MustCompile(`(?m)^( *)#([a-z])`).ReplaceAllString(string(text), "$1$2")
	c = &config{}
	if got := load(t, c, all, nil, nil); got != "" {
		t.Errorf("without its comments: %s", got)
	}
	if a, b := must(Marshal(c)), must(Marshal(set)); a != b {
		t.Errorf("without its comments it is\n%swant\n%s", a, b)
	}
}

func must(text []byte, err error) string {
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestValues: a value is read by the type of its setting.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		override string
		value    func(*config) any
		want     any
	}{
		{"actor.optim.lr=1e-5", func(c *config) any { return c.Actor.Optim.LR }, 1e-5},
		{"actor.optim.lr=1", func(c *config) any { return c.Actor.Optim.LR }, 1.0},
		{"actor.optim.lr= .5 ", func(c *config) any { return c.Actor.Optim.LR }, 0.5},
		{"actor.optim.lr=0.", func(c *config) any { return c.Actor.Optim.LR }, 0.0},
		{"actor.optim.lr=+1E-3", func(c *config) any { return c.Actor.Optim.LR }, 1e-3},
		{"actor.optim.lr=0e0", func(c *config) any { return c.Actor.Optim.LR }, 0.0},
		{"actor.small=-128", func(c *config) any { return c.Actor.Small }, int8(-128)},
		{"actor.use_kl_loss=True", func(c *config) any { return c.Actor.KL }, true},
		{"name=010", func(c *config) any { return c.Name }, "010"},
		{"name=", func(c *config) any { return c.Name }, ""},
		{"name=null", func(c *config) any { return c.Name }, "null"},
		{"name=a: b, [c] = 'd' #e", func(c *config) any { return c.Name }, "a: b, [c] = 'd' #e"},
		{"actor.tags=[]", func(c *config) any { return c.Actor.Tags }, []string(nil)},
		{"actor.tags=[1, 'null', yes]", func(c *config) any { return c.Actor.Tags },
			[]string{"1", "null", "yes"}},
		// one text is a list of it
		{"actor.tags=a.arrow", func(c *config) any { return c.Actor.Tags }, []string{"a.arrow"}},
		{"actor.tags=a: b, &c", func(c *config) any { return c.Actor.Tags }, []string{"a: b, &c"}},
		{"actor.tags=[ab].jsonl", func(c *config) any { return c.Actor.Tags },
			[]string{"[ab].jsonl"}},
		{"actor.tags=", func(c *config) any { return c.Actor.Tags }, []string(nil)},
		{"critic.levels=[0, 1e-3]", func(c *config) any { return c.Critic.Levels },
			[]float64{0, 1e-3}},
		{"trainer.seed=-0", func(c *config) any { return c.Trainer.Shared.Seed }, uint64(0)},
	} {
		cfg := defaults()
		if got := load(t, cfg, "", []string{c.override}, nil); got != "" {
			t.Errorf("%s: %s", c.override, got)
		} else if got := c.value(cfg); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %#v, want %#v", c.override, got, c.want)
		}
	}
	for text, want := range map[string][]string{"tags: a b": {"a b"}, `tags: ""`: nil, "tags: [a, b]": {"a", "b"}, "tags:\n    - a": {"a"}} {
		c := defaults()
		if got := load(t, c, "actor:\n  "+text, nil, nil); got != "" ||
			!slices.Equal(c.Actor.Tags, want) {
			t.Errorf("%q: %q %s", text, c.Actor.Tags, got)
		}
	}
	// In a file as well: texts that look like something else, and the ways to write one.
	for text, want := range map[string]string{
		"name: 010":         "010",
		"name: yes":         "yes",
		"name: 'null'":      "null",
		`name: ""`:          "",
		"name: |\n  a\n  b": "a\nb",
		"name: 2026-01-02":  "2026-01-02",
	} {
		c := defaults()
		if got := load(t, c, text, nil, nil); got != "" || c.Name != want {
			t.Errorf("%q: %q %s", text, c.Name, got)
		}
	}
}

func TestFileProblems(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"actor:\n  optm:\n    lr: 1\n", `settings: run.yaml:2:3: setting "actor.optm": unknown: did you mean "actor.optim"?`},
		{"actor:\n  optim:\n    rl: 1\n", `settings: run.yaml:3:5: setting "actor.optim.rl": unknown: did you mean "actor.optim.lr"?`},
		{"actor:\n  optim:\n    q: 1\n", `settings: run.yaml:3:5: setting "actor.optim.q": unknown: known in "actor.optim": lr, steps`},
		{"total_steps: 1\n", `settings: run.yaml:1:1: setting "total_steps": unknown: did you mean "trainer.total_steps"?`},
		{"lr: 1\n", `settings: run.yaml:1:1: setting "lr": unknown: did you mean "actor.optim.lr" or "critic.optim.lr"?`},
		{"zzz: 1\n", `settings: run.yaml:1:1: setting "zzz": unknown: known here: name, actor, critic, trainer`},
		{"actor.optim.lr: 1\n", `settings: run.yaml:1:1: setting "actor.optim.lr": dotted names are for the command line: in a file write one level per line, each indented below the last`},
		{"name: a\nname: b\n", `settings: run.yaml:2:1: setting "name": given twice, first at 1:1: keep one`},
		{"actor: {small: 1}\nactor: {small: 2}\n", `settings: run.yaml:2:1: setting "actor": given twice, first at 1:1: keep one`},
		{"actor: {optim: {lr: fast}}\n", `settings: run.yaml:1:21: setting "actor.optim.lr": "fast": expected a number, such as 0.2 or 1e-6`},
		{"actor: {optim: {lr: 010}}\n", `settings: run.yaml:1:21: setting "actor.optim.lr": "010": a leading zero, which YAML 1.1 reads as octal: write 10`},
		{"actor: {small: 010}\n", `settings: run.yaml:1:16: setting "actor.small": "010": a leading zero, which YAML 1.1 reads as octal: write 10`},
		{"actor: {optim: {lr: -00.5}}\n", `settings: run.yaml:1:21: setting "actor.optim.lr": "-00.5": a leading zero, which YAML 1.1 reads as octal: write -0.5`},
		{"actor: {small: 0x10}\n", `settings: run.yaml:1:16: setting "actor.small": "0x10": expected an integer in decimal digits`},
		{"actor: {small: 1_0}\n", `settings: run.yaml:1:16: setting "actor.small": "1_0": expected an integer in decimal digits`},
		{"actor: {small: 1e1}\n", `settings: run.yaml:1:16: setting "actor.small": "1e1": expected an integer: write 10`},
		{"actor: {small: 8.0}\n", `settings: run.yaml:1:16: setting "actor.small": "8.0": expected an integer: write 8`},
		{"actor: {small: 128}\n", `settings: run.yaml:1:16: setting "actor.small": "128": does not fit: expected at most 8 bits`},
		{"trainer: {seed: -1}\n", `settings: run.yaml:1:17: setting "trainer.seed": "-1": expected an integer of at least 0`},
		{"trainer: {seed: 18446744073709551616}\n", `settings: run.yaml:1:17: setting "trainer.seed": "18446744073709551616": does not fit: expected at most 64 bits`},
		{"actor: {optim: {lr: .inf}}\n", `settings: run.yaml:1:21: setting "actor.optim.lr": ".inf": expected a finite number`},
		{"actor: {optim: {lr: .nan}}\n", `settings: run.yaml:1:21: setting "actor.optim.lr": ".nan": expected a finite number`},
		{"actor: {optim: {lr: 1e999}}\n", `settings: run.yaml:1:21: setting "actor.optim.lr": "1e999": expected a finite number`},
		{"actor: {optim: {lr: '1'}}\n", `settings: run.yaml:1:21: setting "actor.optim.lr": "1": expected a number: write it without quotes`},
		{"actor: {optim: {lr: 2}}\n", `settings: run.yaml:1:21: setting "actor.optim.lr": "2": above the maximum 1`},
		{"actor: {optim: {steps: -1}}\n", `settings: run.yaml:1:24: setting "actor.optim.steps": "-1": below the minimum 0 (0: none)`},
		{"actor: {use_kl_loss: yes}\n", `settings: run.yaml:1:22: setting "actor.use_kl_loss": "yes": expected true or false`},
		{"actor: {loss_mode: gsop}\n", `settings: run.yaml:1:20: setting "actor.loss_mode": "gsop": did you mean "gspo"? (one of: vanilla, gspo, cispo)`},
		{"actor: {loss_mode: x}\n", `settings: run.yaml:1:20: setting "actor.loss_mode": "x": expected one of: vanilla, gspo, cispo`},
		{"critic: {kinds: [bt, bcee]}\n", `settings: run.yaml:1:22: setting "critic.kinds": "bcee": did you mean "bce"? (one of: bt, bce)`},
		{"critic: {levels: [1, -1]}\n", `settings: run.yaml:1:22: setting "critic.levels": "-1": below the minimum 0`},
		{"critic: {levels: 1}\n", `settings: run.yaml:1:18: setting "critic.levels": "1": expected a list of numbers, such as [0.5, 1]`},
		{"critic: {levels: [[1]]}\n", `settings: run.yaml:1:19: setting "critic.levels": expected a list of numbers: an element is itself a list or a group`},
		{"critic: {levels: {a: 1}}\n", `settings: run.yaml:1:18: setting "critic.levels": is one value, not a group: expected a list of numbers`},
		{"name: {a: 1}\n", `settings: run.yaml:1:7: setting "name": is one value, not a group: expected text`},
		{"name: [a]\n", `settings: run.yaml:1:7: setting "name": is one value, not a list: expected text`},
		{"name:\n", `settings: run.yaml:1:6: setting "name": no value: write "" for an empty text, or leave the setting out to keep the default`},
		{"actor: {small: ~}\n", `settings: run.yaml:1:16: setting "actor.small": no value: give one, or leave the setting out to keep the default`},
		{"actor: 3\n", `settings: run.yaml:1:8: group "actor": expected settings below it, such as actor.optim.lr`},
		{"- a\n", `settings: run.yaml:1:1: expected groups and settings, such as trainer: {seed: 1}`},
		{"? [a]\n: b\n", `settings: run.yaml:1:3: expected a name as key`},
		{"name: &x a\n", `settings: run.yaml:1:7: setting "name": anchors (&name) are refused: write the value out where it is needed`},
		{"actor: {tags: [&x a, *x]}\n", "settings: run.yaml:1:16: setting \"actor.tags\": anchors (&name) are refused: write the value out where it is needed\n" +
			`settings: run.yaml:1:22: setting "actor.tags": aliases (*name) are refused: write the value out`},
		{"actor: {<<: {small: 1}}\n", `settings: run.yaml:1:9: merge keys (<<) are refused: write the settings out`},
		{"name: !!str a\n", `settings: run.yaml:1:7: setting "name": tags (!name) are refused: the setting's type is known`},
		{"name: a\n---\nname: b\n", `settings: run.yaml:2: not YAML: a second document: only one is allowed`},
		{"name: [\n", `settings: run.yaml:1: not YAML: did not find expected node content`},
		{"actor:\n\tsmall: 1\n", `settings: run.yaml:2: not YAML: found character that cannot start any token: indent with spaces, not tabs`},
	} {
		cfg := defaults()
		if got := load(t, cfg, c.text, nil, nil); got != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.text, got, c.want)
		}
		if !reflect.DeepEqual(cfg, defaults()) {
			t.Errorf("%q: the refused file changed the struct: %+v", c.text, cfg)
		}
	}
}

func TestOverrideProblems(t *testing.T) {
	for _, c := range []struct{ o, want string }{
		{"-x", `settings: override "-x": looks like a flag: a setting is written without dashes, setting=value`},
		{"--lr=1", `settings: override "--lr=1": looks like a flag: a setting is written without dashes, setting=value`},
		{"name", `settings: override "name": expected setting=value, such as name=...`},
		{"=1", `settings: override "=1": expected setting=value, such as name=...`},
		{"+name=a", `settings: override "+name=a": a leading + or ~ adds and deletes settings in Hydra; here every setting exists: write name=a`},
		{"actor={small: 1}", `settings: override "actor={small: 1}": group "actor": name one of its settings, such as actor.optim.lr`},
		{"actor.optin.lr=1", `settings: override "actor.optin.lr=1": setting "actor.optin.lr": unknown: did you mean "actor.optim.lr"?`},
		{"actor.lr=1", `settings: override "actor.lr=1": setting "actor.lr": unknown: did you mean "actor.optim.lr" or "critic.optim.lr"?`},
		{"name.x=1", `settings: override "name.x=1": setting "name.x": unknown: "name" is a setting, not a group`},
		{"actor.small=", `settings: override "actor.small=": setting "actor.small": no value: expected an integer`},
		{"actor.tags=[a", `settings: override "actor.tags=[a": setting "actor.tags": expected a list of texts, such as [a, b]: line 1: did not find expected ',' or ']'`},
		{"actor.tags=[&x a]", `settings: override "actor.tags=[&x a]": setting "actor.tags": anchors (&name) are refused: write the value out where it is needed`},
		{"critic.levels=[1, x]", `settings: override "critic.levels=[1, x]": setting "critic.levels": "x": expected a number, such as 0.2 or 1e-6`},
		{"trainer.total_steps=0", `settings: override "trainer.total_steps=0": setting "trainer.total_steps": "0": below the minimum 1`},
		{"name=\xff", `settings: override "name=\xff": setting "name": "\xff": not valid UTF-8`},
		{"name=" + strings.Repeat("é", 40) + "\xff", `settings: override "name=` + strings.Repeat("é", 27) + `...": setting "name": "` + strings.Repeat("é", 30) + `...": not valid UTF-8`},
	} {
		if got := load(t, defaults(), "", []string{c.o}, nil); got != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.o, got, c.want)
		}
	}
}

func TestFlags(t *testing.T) {
	c := defaults()
	got := load(t, c, "actor: {tags: [file]}\n", []string{"name=o"}, []Flag{
		{"actor.tags", "one, whole", "--tag"}, {"name", " f", "--name"},
		{"actor.tags", "[two, three]", "--tag"}})
	if want := []string{"one, whole", "two", "three"}; got != "" || c.Name != " f" ||
		!reflect.DeepEqual(c.Actor.Tags, want) {
		t.Errorf("%s: %+v", got, c)
	}
	got = load(t, defaults(), "", nil,
		[]Flag{{"actor.optim.lr", "x", "--lr"}, {"actor.optim.steps", "-1", "steps"},
			{"critic.levels", "q", "-l"}, {"critic.levels", "[", "-l"}, {"nope", "1", "--nope"}})
	want := `settings: flag --lr: setting "actor.optim.lr": "x": expected a number, such as 0.2 or 1e-6
settings: flag --steps: setting "actor.optim.steps": "-1": below the minimum 0 (0: none)
settings: flag -l: setting "critic.levels": "q": expected a number, such as 0.2 or 1e-6
settings: flag -l: setting "critic.levels": expected a list of numbers, such as [0.5, 1]: line 1: did not find expected node content
settings: flag --nope: setting "nope": unknown: known here: name, actor, critic, trainer`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestAllAtOnce(t *testing.T) {
	got := load(t, defaults(), "nam: a\nactor:\n  small: x\n  optim: {lr: 9}\n",
		[]string{"-v", "name=ok", "zzzz=1"}, []Flag{{"trainer.seed", "no", "--seed"}})
	want := `settings: run.yaml:1:1: setting "nam": unknown: did you mean "name"?
settings: run.yaml:3:10: setting "actor.small": "x": expected an integer in decimal digits
settings: run.yaml:4:15: setting "actor.optim.lr": "9": above the maximum 1
settings: override "-v": looks like a flag: a setting is written without dashes, setting=value
settings: override "zzzz=1": setting "zzzz": unknown: known here: name, actor, critic, trainer
settings: flag --seed: setting "trainer.seed": "no": expected an integer in decimal digits`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestFileItself(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, []byte("#"+strings.Repeat("x", maxFile)), 0o666); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(dir, "gone.yaml")
	for path, want := range map[string]string{
		big:  "settings: " + big + ": larger than 262144 bytes: is this a configuration?",
		gone: "settings: " + gone + ": no such file or directory",
		dir:  "settings: " + dir + ": not a regular file",
	} {
		if err := Load(defaults(), path, nil, nil); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if _, err := os.Stat("/dev/zero"); err == nil {
		if err := Load(defaults(), "/dev/zero", nil, nil); err == nil ||
			err.Error() != "settings: /dev/zero: not a regular file" {
			t.Errorf("/dev/zero: %v", err)
		}
	}
}

// TestHostileFiles: bombs, deep nesting and garbage end in a short time and a refusal.
func TestHostileFiles(t *testing.T) {
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'i'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", c-1), 9), ", "))
	}
	n := maxFile / 8
	for name, text := range map[string]string{
		"alias bomb":   bomb,
		"self alias":   "actor: &a {optim: *a}\n",
		"nested lists": "name: " + strings.Repeat("[", n),
		"nested maps":  strings.Repeat("{a: ", n),
		"indented":     "actor:\n" + strings.Repeat(" ", maxFile/2) + "small: 1\n  x",
		"dashes":       strings.Repeat("- ", n),
		"unknown keys": strings.Repeat("k: 1\n", n),
		"long key":     strings.Repeat("k", maxFile-10) + ": 1\n",
		"long number":  "actor: {small: " + strings.Repeat("9", maxFile-30) + "}\n",
		"long float": "actor: {optim: {lr: 1." + strings.Repeat("9", maxFile-40) +
			"e999999999}}\n",
		"NUL":             "name: a\x00b\n",
		"not UTF-8":       "name: \xff\xfe\n",
		"UTF-16 half":     "\xff\xfea",
		"many problems":   "actor: {tags: [" + strings.Repeat("{}, ", n) + "]}\n",
		"question marks":  strings.Repeat("? ", n),
		"many duplicates": "name: a\n" + strings.Repeat("name: a\n", n),
	} {
		begin := time.Now()
		got := load(t, defaults(), text, nil, nil)
		took := time.Since(begin)
		if got == "" {
			t.Errorf("%s: accepted", name)
		}
		if took > time.Minute {
			t.Errorf("%s: took %v", name, took)
		}
		if len(got) > 20_000 {
			t.Errorf("%s: a message of %d bytes", name, len(got))
		}
	}
	if got := load(t, defaults(), strings.Repeat("k: 1\n", 200), nil, nil); strings.Count(got,
		"\n") != maxProblems || !strings.HasSuffix(got, ": and more: fix these first") {
		t.Errorf("problems are not capped:\n%s", got)
	}
}

// Row 12: damaged settings are refused or read, and what is read keeps to the rules.
func TestHostileFormats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	whole, err := Marshal(defaults())
	if err != nil {
		t.Fatal(err)
	}
	hostile.Format{
		Name:  "settings",
		Small: []byte("name: a\nactor: {optim: {lr: 1e-5}, tags: [a, 'b']}\ncritic:\n  levels: [.5]\n  kinds:\n  - bt\n"),
		Seeds: [][]byte{whole, []byte("# none\nactor:\n  small: 7\n  use_kl_loss: true\n  loss_mode: \"gspo\"\ntrainer:\n  seed: 18446744073709551615\n")},
		Words: []string{"&a ", "*a", "<<: ", "!!int ", "---\n", "- ", "? ", ": ", "{", "[", "|\n",
			">\n", "\t", "'", "\"", "#", "%", "@", "null", "~", "010", "1e999", "\x00", "\ufeff",
			"actor.optim.lr: 1\n"},
		Prefix: "settings: ",
		Read: func(text []byte) error {
			if err := os.WriteFile(path, text, 0o666); err != nil {
				t.Fatal(err)
			}
			c := defaults()
			err := Load(c, path, nil, nil)
			if err == nil {
				if bad := Check(c); bad != nil {
					t.Errorf("%q: read as what breaks the rules: %v", text, bad)
				}
			}
			return err
		},
	}.Try(t)
}

func TestDescribe(t *testing.T) {
	got := Describe(defaults())
	var keys []string
	for _, s := range got {
		keys = append(keys, s.Key)
	}
	want := "name actor.optim.lr actor.optim.steps actor.loss_mode actor.use_kl_loss actor.small actor.tags " +
		"critic.optim.lr critic.optim.steps critic.levels critic.kinds trainer.seed trainer.total_steps"
	if strings.Join(keys, " ") != want {
		t.Errorf("keys %v\nwant %s", keys, want)
	}
	if want := (Setting{"actor.optim.lr", "number", "1e-06", "learning rate", "0", "1",
		nil, nil}); !reflect.DeepEqual(got[1], want) {
		t.Errorf("%+v\nwant %+v", got[1], want)
	}
	if want := (Setting{"actor.loss_mode", "text", "gspo", "policy loss", "", "",
		[]string{"vanilla", "gspo", "cispo"}, []string{"vanilla", "cispo"},
	}); !reflect.DeepEqual(got[3], want) {
		t.Errorf("%+v\nwant %+v", got[3], want)
	}
	if !reflect.DeepEqual(Describe(*defaults()), got) {
		t.Error("a struct and a pointer to it are described differently")
	}
}

func TestCheck(t *testing.T) {
	if err := Check(defaults()); err != nil {
		t.Error(err)
	}
	type bad struct {
		A int       `yaml:"a" min:"1"`
		B string    `yaml:"b" doc:"b" choices:"x,y"`
		C []float64 `yaml:"c" doc:"c" max:"1"`
	}
	err := Check(bad{C: []float64{1, 2, math.Inf(-1)}})
	want := `settings: conf.bad: setting "a": no doc tag
settings: conf.bad: setting "a": default 0: below the minimum 1
settings: conf.bad: setting "b": default "": expected one of: x, y
settings: conf.bad: setting "c": default 2: above the maximum 1
settings: conf.bad: setting "c": default -Inf: expected a finite number`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestProgrammersErrors(t *testing.T) {
	for want, v := range map[string]any{
		"conf: int: expected a struct or a pointer to one": 3,
		`conf: struct { A map[string]int "yaml:\"a\"" }.A: type map[string]int is not supported`: struct {
			A map[string]int `yaml:"a"`
		}{},
		`conf: struct { A int }.A: expected a yaml tag of lower-case letters, digits and _, or ",inline" on a struct`: struct{ A int }{},
		`conf: struct { A int "yaml:\"a\""; B int "yaml:\"a\"" }.B: yaml name "a" appears twice`: struct {
			A int `yaml:"a"`
			B int `yaml:"a"`
		}{},
		`conf: struct { A int "yaml:\"a\" min:\"x\"" }.A: bound "x": expected a number on a numeric setting`: struct {
			A int `yaml:"a" min:"x"`
		}{},
		`conf: struct { A string "yaml:\"a\" min:\"1\"" }.A: bound "1": expected a number on a numeric setting`: struct {
			A string `yaml:"a" min:"1"`
		}{},
		`conf: struct { A string "yaml:\"a\" choices:\"b,c\" unproven:\"d\"" }.A: unproven "d": expected one of its choices, or all`: struct {
			A string `yaml:"a" choices:"b,c" unproven:"d"`
		}{},
		`conf: group "": struct {} has no fields`: struct{}{},
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panic %v\nwant  %s", got, want)
				}
			}()
			Describe(v)
		}()
	}
	defer func() {
		if got, want :=
			recover(), "conf: Load into conf.config: expected a pointer to a struct"; got != want {
			t.Errorf("panic %v\nwant  %s", got, want)
		}
	}()
	Load(*defaults(), "", nil, nil)
}

func TestMarshal(t *testing.T) {
	c := defaults()
	c.Name = "it's: a #name"
	c.Actor.Tags = []string{"a", "", "null", "x, y", "010", "é\n\x00\u2028", "-", "./d/e-f", "1e5",
		"No", ".5", "~"}
	c.Critic.Optim.LR = 0.1
	got, err := Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	want := `name: "it's: a #name"
actor:
  optim:
    lr: 1e-06
    steps: 0
  loss_mode: gspo
  use_kl_loss: false
  small: 0
  tags: [a, "", "null", "x, y", "010", "é\n\x00\u2028", "-", ./d/e-f, "1e5", "No", ".5", "~"]
critic:
  optim:
    lr: 0.1
    steps: 0
  levels: [0.5, 1]
  kinds: []
trainer:
  seed: 1
  total_steps: 200
`
	if string(got) != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	var back config
	if err := Load(&back, write(t, string(got)), nil, nil); err != nil ||
		!reflect.DeepEqual(&back, c) {
		t.Errorf("read back: %v\n%+v\nwant %+v", err, back, *c)
	}
	for _, bad := range []struct {
		set  func(*config)
		want string
	}{
		{func(c *config) { c.Actor.Optim.LR = math.NaN() }, `conf: conf.config: setting "actor.optim.lr": expected a finite number`},
		{func(c *config) { c.Critic.Levels = []float64{math.Inf(1)} }, `conf: conf.config: setting "critic.levels": expected a finite number`},
		{func(c *config) { c.Actor.Tags = []string{"\xff"} }, `conf: conf.config: setting "actor.tags": not valid UTF-8`},
	} {
		c := defaults()
		bad.set(c)
		if _, err := Marshal(c); err == nil || err.Error() != bad.want {
			t.Errorf("got  %v\nwant %s", err, bad.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	got := Markdown(defaults())
	for _, want := range []string{
		"| setting | type | default | meaning |\n|---|---|---|---|\n| `name` | text | `run` | name of the run \\| shown |\n\n## actor\n\n| setting |",
		"| `actor.optim.lr` | number | `1e-06` | learning rate. From 0 to 1 |\n",
		"| `actor.loss_mode` | text | `gspo` | policy loss. One of `vanilla`, `gspo`, `cispo`. *Unproven*: `vanilla`, `cispo` |\n",
		"| `actor.small` | integer | `0` | a small integer. *Unproven* |\n",
		"| `trainer.total_steps` | integer | `200` | steps. At least 1 |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in:\n%s", want, got)
		}
	}
	if strings.Count(got, "## ") != 3 {
		t.Errorf("want 3 sections:\n%s", got)
	}
}

// FuzzLoad: no input panics, and what is accepted is written and read back to the same value.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{"name: a\n", "actor: {optim: {lr: 1e-5}, tags: [a, 'b']}\n",
		"a: &x [*x]\n", "<<: {}\n", "name: |\n  a\n", "critic: {levels: [.5]}"} {
		f.Add(s, "actor.tags=[a]")
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text, override string) {
		p := filepath.Join(dir, "f.yaml")
		if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		c := defaults()
		if err := Load(c, p, []string{override}, nil); err != nil {
			return
		}
		out, err := Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, out, 0o666); err != nil {
			t.Fatal(err)
		}
		var back config
		if err := Load(&back, p, nil, nil); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !reflect.DeepEqual(&back, c) {
			t.Fatalf("%+v\nread back %+v\n%s", *c, back, out)
		}
	})
}

// Copy takes values over as they are: a text that YAML quotes keeps no quotes.
func TestCopy(t *testing.T) {
	src, dst := defaults(), defaults()
	src.Name, src.Actor.Small = `touch "x"; sed 's/a: b/#/'`, 7
	Copy(dst, src, []string{"name"})
	if want := defaults(); dst.Name != src.Name || dst.Actor.Small != want.Actor.Small {
		t.Errorf("copied %q and %d", dst.Name, dst.Actor.Small)
	}
}
