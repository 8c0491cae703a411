package chattest

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Control matches a control sequence.
var Control = regexp.MustCompile("\x1b\\[([0-9]*)([A-Za-z])")

// Screen is what stands on a terminal after the output.
func Screen(output string) []string {
	lines, at := []string{""}, 0
	for output != "" {
		if m := Control.FindStringSubmatch(output); m != nil && strings.HasPrefix(output, m[0]) {
			n := 1
			fmt.Sscan(m[1], &n)
			switch m[2] {
			case "A":
				at = max(0, at-n)
			case "J":
				lines = append(lines[:at:at], "")
			}
			output = output[len(m[0]):]
			continue
		}
		r, size := utf8.DecodeRuneInString(output)
		output = output[size:]
		switch r {
		case '\r':
		case '\n':
			if at++; at == len(lines) {
				lines = append(lines, "")
			}
			lines[at] = ""
		default:
			lines[at] += string(r)
		}
	}
	return lines
}
