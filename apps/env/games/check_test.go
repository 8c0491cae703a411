//go:build unix

package games

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/internal/env"
)

// checks returns what a check of the environment that a script is says, and prints.
func checks(t *testing.T, script string, o env.Options, rows []Recorded) ([]string, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "env.sh")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return checkOf(t, "sh "+path, o, rows)
}

// checkOf returns what a check of the environment that a command runs says, and prints.
func checkOf(t *testing.T, command string, o env.Options, rows []Recorded) ([]string, string) {
	t.Helper()
	if o.Command = command; o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	pool, err := env.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var out bytes.Buffer
	broken, err := Check(context.Background(), pool, 1, rows, &out)
	if err != nil {
		t.Fatal(err)
	}
	return broken, out.String()
}

// shell is an environment of a few lines of shell: $N counts its requests.
const shell = `N=0
while read -r line; do
  N=$((N+1)); id=$(expr "$line" : '.*"id":\([0-9]*\)')
  case $line in
  *'"hello"'*) echo '{"name":"shell","version":1,"episodes":1}' ;;
  *'"reset"'*) echo '{"id":'$id',"append":[{"role":"user","content":"Say something."}]}' ;;
  *'"step"'*) STEP ;;
  esac
done
`

// forker is an environment of a few lines of shell whose replies count the turns, and that says it
// can fork.
const forker = `while read -r line; do
  id=${line#*'"id":'}; id=${id%%[,\}]*}
  case $line in
  *'"hello"'*) echo '{"name":"forker","version":1,"episodes":EPISODES,"fork":true}' ;;
  *'"reset"'*) eval "n_$id=0"; echo '{"id":'$id',"append":[{"role":"user","content":"Go."}]}' ;;
  *'"fork"'*) n=${line#*'"turns":'}; n=${n%%[,\}]*}; FORK ;;
  *'"step"'*)
    eval "n=\$((n_$id+1)); n_$id=\$n"
    if [ $n -eq 6 ]; then echo '{"id":'$id',"done":true}'
    else echo '{"id":'$id',"append":[{"role":"user","content":"turn '$n'"}]}'; fi ;;
  esac
done
`

// A teacher's episode that began with another context than the environment gives is said so.
func TestCheckOtherStart(t *testing.T) {
	rows, err := ReadRows(strings.NewReader(`{"content":[{"role":"user","content":"Hello"}],` +
		`"teacher_response":[{"role":"assistant","content":"a"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	script := strings.Replace(shell, "STEP", `echo '{"id":'$id',"reward":1,"done":true}'`, 1)
	const want = "row 0: the environment does not begin with content, as the teacher's episode did"
	if broken, out := checks(t, script, env.Options{Workers: 2}, rows); !slices.Contains(broken,
		want) {
		t.Errorf("%q\n%s", broken, out)
	}
}

// What a check says of environments that fork well, that have no place for a fork, and that promise
// forks which they do not keep.
func TestCheckForks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	const reply = `echo '{"id":'$id',"append":[{"role":"user","content":"turn '$n'"}]}'`
	for _, c := range []struct {
		fork, episodes, want string // "" is none
		forks                int
	}{
		{`eval "n_$id=$n"; ` + reply, "8", "", 30},
		{`eval "n_$id=$n"; ` + reply, "1", "", 0},
		{`eval "n_$id=0"; ` + reply, "8", "episode 0, seed 1: fork promised and not kept: forked behind turn 3, with the same turns, reply 4 is another", 10},
		{`n=$((n-1)); eval "n_$id=$n"; ` + reply, "8", ` behind turn 3: promised and not kept: the reply is not that to turn 3: was "`, 0},
		{`echo '{"id":'$id',"error":"what is a fork?"}'`, "8", ` behind turn 3: promised and not kept: the environment says "what is a fork?"`, 0},
	} {
		script := strings.NewReplacer("EPISODES", c.episodes, "FORK", c.fork).Replace(forker)
		broken, out := checks(t, script, env.Options{Workers: 1}, nil)
		said := strings.Join(broken, "\n")
		if (said == "") != (c.want == "") || !strings.Contains(said, c.want) ||
			!strings.Contains(out, fmt.Sprintf("\n%d forks of episodes\n", c.forks)) {
			t.Errorf("%s: %s\n%s\nwant %s, %d forks", c.fork, said, out, c.want, c.forks)
		}
	}
}

// Environments that are well, that are not deterministic, and that break the protocol.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		step, want string // "" is none
	}{
		{`echo '{"id":'$id',"reward":1,"done":true}'`, ""},
		{`echo '{"id":'$id',"reward":'$N',"done":true}'`, "episode 1, seed 2: not deterministic: with the same seed and turns, and others at once, reply 1 is another"},
		{`echo '{"id":'$id',"reward":NaN,"done":true}'`, `turn 1: "{\"id\":1,\"reward\":NaN,\"done\":true}" is not JSON`},
	} {
		script := strings.Replace(shell, "STEP", c.step, 1)
		broken, out := checks(t, script, env.Options{Workers: 1}, nil)
		if said := strings.Join(broken, "\n"); (said == "") != (c.want == "") ||
			!strings.Contains(said, c.want) {
			t.Errorf("%s: %s\n%s", c.step, said, out)
		}
		if c.want == "" && strings.Count(out, "  done\n") != 10 {
			t.Errorf("%s:\n%s", c.step, out)
		}
	}
}

// A check of an environment that never answers, or no turn, gives up after a few episodes.
func TestCheckSilent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ at, replies string }{{"reset", `*'"reset"'*) ;;`},
		{"turn", `*'"reset"'*) echo '{"id":'$id',"append":[{"role":"user","content":"Go."}]}' ;;`}} {
		script := `while read -r line; do id=${line#*'"id":'}; id=${id%%[,\}]*}; case $line in
*'"hello"'*) echo '{"name":"mute","version":1,"episodes":4}' ;;
` + c.replies + "\nesac; done\n"
		broken, out := checks(t, script,
			env.Options{Workers: 1, Timeout: 300 * time.Millisecond}, nil)
		const want = "3 episodes in a row had no reply in time: no others are played"
		if len(broken) != 4 || broken[3] != want || strings.Count(out, "\nepisode") != 1 {
			t.Errorf("silent at a %s: %q\n%s", c.at, broken, out)
		}
	}
}
