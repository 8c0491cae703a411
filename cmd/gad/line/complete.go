package line

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/internal/conf"
	"gad/trainer/config"
)

// A script calls gad completion words for the candidates at the cursor, so that it is never out of
// date.

// Bash is the completion script for bash.
const Bash = `# Completion of gad for bash.
_gad() {
  local line=${COMP_LINE:0:COMP_POINT} words word about prefix=
  IFS=$' \t' read -ra words <<<"$line"
  case $line in *[[:space:]]) words+=('') ;; esac
  local cur=${words[${#words[@]}-1]}
  # bash takes = for the end of a word.
  case $cur in *=*) prefix=${cur%"${cur##*=}"} ;; esac
  COMPREPLY=()
  while IFS=$'\t' read -r word about; do
    case $word in *=) compopt -o nospace 2>/dev/null ;; esac
    COMPREPLY+=("${word#"$prefix"}")
  done < <("${words[0]/#\~/$HOME}" completion words -- "${words[@]}" 2>/dev/null)
}
complete -o default -F _gad gad
`

// Zsh is the completion script for zsh.
const Zsh = `#compdef gad
# Completion of gad for zsh.
_gad() {
  local -a whole open
  local line word
  for line in "${(@f)$("${words[1]}" completion words -- "${(@)words[1,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] || continue
    word=${${line%%$'\t'*}//:/\\:}
    if [[ $word == *= ]]; then
      open+=("$word:${line#*$'\t'}")
    else
      whole+=("$word:${line#*$'\t'}")
    fi
  done
  if (( ${#whole} + ${#open} == 0 )); then
    _files
    return
  fi
  (( ${#whole} == 0 )) || _describe -t words word whole
  (( ${#open} == 0 )) || _describe -t settings setting open -S ''
}
if [[ $funcstack[1] == _gad ]]; then
  _gad "$@"
else
  compdef _gad gad
fi
`

// Fish is the completion script for fish.
const Fish = `# Completion of gad for fish.
function __gad_words
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    $words[1] completion words -- $words "$word" 2>/dev/null
end
complete -c gad -a '(__gad_words)'
`

// Candidate is a completion of the word at the cursor.
type Candidate struct{ Text, About string }

// Candidates returns the completions of the last of words, the first of which is the program. None
// means that the word is a file, or that nothing is known about it. values returns the values of a
// flag that has a fixed set of them.
func Candidates(app *cli.App, words []string,
	values func(flag string) []string) (list []Candidate) {
	if len(words) < 2 {
		return nil
	}
	before, cur := words[1:len(words)-1], words[len(words)-1]
	offer := func(text, about string) {
		if strings.HasPrefix(text, cur) {
			list = append(list, Candidate{text, strings.Join(strings.Fields(about), " ")})
		}
	}
	var c *cli.Command
	commands, at := app.Commands, 0
	for ; at < len(before); at++ {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(before[at]) })
		if i < 0 {
			break
		}
		c, commands = commands[i], commands[i].Subcommands
	}
	rest := before[at:]
	flags := []cli.Flag{cli.HelpFlag}
	if c == nil {
		flags = append(flags, cli.VersionFlag)
	} else {
		flags = append(slices.Clone(c.Flags), flags...)
	}
	switch {
	case len(rest) > 0 && takesValue(c, rest[len(rest)-1]):
		for _, v := range values(strings.TrimLeft(rest[len(rest)-1], "-")) {
			offer(v, "")
		}
	case strings.HasPrefix(cur, "-"):
		for _, f := range flags {
			about := ""
			if d, ok := f.(cli.DocGenerationFlag); ok {
				about = d.GetUsage()
			}
			offer("--"+f.Names()[0], about)
		}
	case c != nil && c.Name == "help" && len(rest) == 1 && rest[0] == "settings":
		for _, s := range Settings() {
			offer(s.Key, Brief(s.Doc))
		}
	case c != nil && c.Name == "help" && len(rest) == 0:
		offer("settings", "describe the settings")
		commands = app.Commands
		fallthrough
	case len(rest) == 0 && len(commands) > 0:
		for _, sub := range commands {
			if !sub.Hidden {
				offer(sub.Name, sub.Usage)
			}
		}
	case c != nil && TakesSettings(c):
		for _, s := range Settings() {
			if !strings.HasPrefix(cur, s.Key+"=") {
				offer(s.Key+"=", Brief(s.Doc))
				continue
			}
			values := s.Choices
			if s.Type == "true or false" {
				values = []string{"true", "false"}
			}
			for _, v := range values {
				offer(s.Key+"="+v, "")
			}
		}
	}
	return list
}

// takesValue reports whether word is a flag of c whose value is the next word.
func takesValue(c *cli.Command, word string) bool {
	if c == nil || !strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
		return false
	}
	f := flagOf(c, strings.TrimLeft(word, "-"))
	_, is := f.(*cli.BoolFlag)
	return f != nil && !is
}

// Settings returns all settings with their defaults.
func Settings() []conf.Setting {
	cfg := config.Default()
	return conf.Describe(&cfg)
}

// Brief returns the first clause of a description.
func Brief(doc string) string {
	if i := strings.IndexAny(doc, ";:"); i > 0 {
		doc = doc[:i]
	}
	doc, _, _ = strings.Cut(doc, ". ")
	return doc
}
