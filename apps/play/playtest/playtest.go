// Package playtest has an environment and its rows for tests of acting.
package playtest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/vfs"
)

// Leftwards is an environment of two turns that wants to read "left". The label of an episode is
// its seed. A row with Break in it breaks, and one with Wait in it waits for ever.
const Leftwards = `while read -r line; do
  id=${line#*'"id":'}; id=${id%%[!0-9]*}
  case $line in
  *'"op":"hello"'*) echo '{"name":"leftwards","version":1,"episodes":8}' ;;
  *'"op":"reset"'*)
    seed=${line#*'"seed":'}; seed=${seed%%[!0-9]*}
    eval "n_$id=0 seed_$id=$seed bad_$id=0"
    case $line in *Break*) eval "bad_$id=1" ;; *Wait*) sleep 600 ;; esac
    echo '{"id":'$id',"append":[]}' ;;
  *'"op":"step"'*)
    eval "n_$id=\$((n_$id+1)); n=\$n_$id seed=\$seed_$id bad=\$bad_$id"
    valid=false reward=0
    case $line in *'"turn":"left"'*) valid=true reward=1 ;; esac
    if [ $bad = 1 ]; then echo '{"id":'$id',"reward":"much"}'
    elif [ $n -gt 1 ]; then echo '{"id":'$id',"reward":'$reward',"valid":'$valid',"done":true,"label":"'$seed'"}'
    else echo '{"id":'$id',"append":[{"role":"user","content":"Again."}],"valid":'$valid'}'
    fi ;;
  esac
done
`

// Recorded returns a row of Leftwards with the teacher's episode.
func Recorded(content, then string) string {
	return fmt.Sprintf(`{"content":[{"role":"user","content":%q}],"teacher_response":[{"role":"assistant","content":"left"},{"role":"user","content":%q},{"role":"assistant","content":"left"}],"env":{"kept": 1}}`+"\n", content, then)
}

// Files writes an environment's script and its rows, and returns the command and the path of the
// rows.
func Files(t testing.TB, script string, rows ...string) (command, data string) {
	t.Helper()
	dir := t.TempDir()
	data, path := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "env.sh")
	for name, text := range map[string]string{data: strings.Join(rows, ""), path: script} {
		if err := vfs.WriteFile(vfs.OS, name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return "sh " + path, data
}
