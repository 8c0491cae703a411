package line

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// Status is an exit status.
type Status struct {
	Code int
	When string
}

// Variable is an environment variable.
type Variable struct{ Name, About string }

// Manual returns the manual page in the man macros; it is the same on every machine.
func Manual(app *cli.App, version string, statuses []Status, environment []Variable) string {
	var b strings.Builder
	macro := func(name string, args ...string) {
		b.WriteString("." + name)
		for _, a := range args {
			b.WriteString(` "` + strings.ReplaceAll(roff(a), `"`, `\(dq`) + `"`)
		}
		b.WriteString("\n")
	}
	text := func(s string) {
		for line := range strings.Lines(strings.TrimSpace(s)) {
			if line = strings.TrimSpace(line); line == "" {
				macro("PP")
				continue
			}
			line = roff(line)
			if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
				line = `\&` + line
			}
			b.WriteString(line + "\n")
		}
	}
	item := func(term, about string) {
		macro("TP")
		macro("B", term)
		text(about)
	}
	macro("TH", "GAD", "1", "", strings.TrimSpace("gad "+version), "")
	macro("SH", "NAME")
	text("gad - " + app.Usage)
	macro("SH", "SYNOPSIS")
	text("gad COMMAND [FLAG ...] [KEY=VALUE ...]")
	macro("SH", "COMMANDS")
	var walk func(prefix string, c *cli.Command)
	walk = func(prefix string, c *cli.Command) {
		if c.Hidden {
			return
		}
		name := prefix + " " + c.Name
		macro("SS", strings.TrimSpace(name+" "+c.ArgsUsage))
		text(c.Usage)
		for _, f := range c.Flags {
			d, ok := f.(cli.DocGenerationFlag)
			if !ok {
				continue
			}
			term, about := "--"+strings.Join(f.Names(), ", -"), d.GetUsage()
			if d.TakesValue() {
				term += " VALUE"
				if v := d.GetDefaultText(); v != "" {
					about += " (default: " + v + ")"
				}
			}
			item(term, about)
		}
		for _, sub := range c.Subcommands {
			walk(name, sub)
		}
	}
	for _, c := range app.Commands {
		walk("gad", c)
	}
	macro("SH", "SETTINGS")
	text("Commands that take KEY=VALUE take any of these, with the defaults of gad train.")
	for _, s := range Settings() {
		about := s.Doc
		if len(s.Choices) > 0 {
			about += ". One of: " + strings.Join(s.Choices, ", ")
		}
		item(s.Key+"="+s.Default, about)
	}
	macro("SH", "EXIT STATUS")
	for _, s := range statuses {
		item(fmt.Sprint(s.Code), s.When)
	}
	macro("SH", "ENVIRONMENT")
	for _, v := range environment {
		item(v.Name, v.About)
	}
	return b.String()
}

// roff escapes the characters that roff would interpret.
func roff(s string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
}
