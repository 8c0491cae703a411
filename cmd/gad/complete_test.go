package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/cmd/gad/line"
	"gad/trainer/config"
)

func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		line string // the cursor is at its end
		want string // the words, in order
		has  string // some of the words, where all are too many
	}{
		{line: "gad ev", want: "eval"},
		{line: "gad data ", want: "inspect validate convert split collect rate score"},
		{line: "gad completion ", want: "bash zsh fish"},
		{line: "gad --v", want: "--version"},
		{line: "gad nothing ", want: ""},
		{line: "gad sft --mod", want: "--model"},
		{line: "gad sft --model ", want: ""}, // a file
		{line: "gad sft --model x --device ", want: "cpu cuda"},
		{line: "gad sft --precision b", want: "bf16"},
		{line: "gad plan --stage ", want: "sft dpo opd warmup train"},
		{line: "gad train --preset ", want: strings.Join(config.PresetNames(), " ")},
		{line: "gad train --", has: "--model --preset --help"},
		{line: "gad train actor.optim.lr",
			want: "actor.optim.lr= actor.optim.lr_scheduler= actor.optim.lr_warmup_steps="},
		{line: "gad train actor.optim.lr=", want: ""},
		{line: "gad train --data x trainer.device=",
			want: "trainer.device=cpu trainer.device=cuda"},
		{line: "gad train rollout.n=4 actor.recompute=",
			want: "actor.recompute=true actor.recompute=false"},
		{line: "gad train ", has: "actor.optim.lr= data.train_batch_size="},
		{line: "gad generate ", want: ""}, // takes no settings
		{line: "gad help settings rollout.top", want: "rollout.top_k rollout.top_p"},
		{line: "gad help ", has: "settings sft man"},
	} {
		var words []string
		for _, w := range line.Candidates((&program{}).app(), strings.Split(c.line, " "),
			valuesOf) {
			words = append(words, w.Text)
			if strings.ContainsAny(w.About, "\t\n") {
				t.Errorf("%q: %s is described by %q: not one line", c.line, w.Text, w.About)
			}
		}
		if got := strings.Join(words, " "); c.has == "" && got != c.want {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
		for _, w := range strings.Fields(c.has) {
			if !slices.Contains(words, w) {
				t.Errorf("%q: %q has no %q", c.line, words, w)
			}
		}
	}
	out, _ := must(t, "completion", "words", "--", "gad", "sft", "--dry-")
	if want := "--dry-run\t"; !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 1 {
		t.Errorf("gad completion words prints %q, want one line that begins with %q", out, want)
	}
}

// Each script is one that its shell can read, and bash's completes.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, said := must(t, "completion", shell)
		if said != "" || !strings.Contains(out, "completion words -- ") {
			t.Errorf("%s: prints %q, says %q", shell, out, said)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("NOT TESTED: there is no %s", shell)
			continue
		}
		check := exec.Command(path, "-n", "/dev/stdin")
		check.Stdin = strings.NewReader(out)
		if text, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s cannot read its script: %v\n%s", shell, err, text)
		}
	}
	program := built(t)
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("NOT TESTED: there is no bash")
	}
	script := `source <("$1" completion bash)
for line in " ev" " sft --dev" " sft --device " " sft trainer.prec" " sft trainer.precision=b" " data "; do
  COMP_LINE=$1$line COMP_POINT=$((${#1} + ${#line})) COMPREPLY=()
  _gad
  echo "$line: ${COMPREPLY[*]}"
done`
	// bash may warn of a locale that is not there
	out, err := exec.Command("bash", "-c", script, "bash", program).Output()
	want := " ev: eval\n sft --dev: --device\n sft --device : cpu cuda\n sft trainer.prec: trainer.precision=\n sft trainer.precision=b: bf16\n data : inspect validate convert split collect rate score\n"
	if err != nil || string(out) != want {
		t.Errorf("bash completes %q, %v; want %q", out, err, want)
	}
}

// The manual has every command, flag and setting, and nothing that roff takes for
// a macro by accident.
func TestMan(t *testing.T) {
	page, _ := must(t, "man")
	for _, want := range []string{`.SS "gad data inspect`, `.SS "gad train [KEY=VALUE ...]"`, `.B "\-\-dry\-run"`, `.B "75"`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
	for _, s := range line.Settings() {
		if !strings.Contains(page, `.B "`+s.Key+"=") {
			t.Errorf("no setting %s", s.Key)
		}
	}
	for line := range strings.Lines(page) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, ".") &&
			!slices.Contains([]string{".TH", ".SH", ".SS", ".TP", ".B", ".PP"}, name) ||
			strings.HasPrefix(name, "'") {
			t.Errorf("line %q: not a macro of ours", line)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		t.Log("NOT TESTED: there is no groff")
		return
	}
	file := filepath.Join(t.TempDir(), "gad.1")
	put(t, file, page)
	check := exec.Command("groff", "-man", "-Tutf8", "-ww", "-z", file)
	if said, err := check.CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("groff: %v\n%s", err, said)
	}
}
