package conf

import (
	"fmt"
	"strings"
)

const maxSuggest = 64 // bytes; edit distances of longer names are not worth their time

// suggest returns a hint for an unknown dotted key: the name in its group that is spelled almost
// like it, else a setting of the same name elsewhere, else the list of the group's names.
func (s *schema) suggest(key string) string {
	// The deepest group that exists: the name after it is the one that is wrong.
	group, rest := "", key
	for {
		head, tail, ok := strings.Cut(rest, ".")
		if !ok || s.groups[join(group, head)] == nil {
			break
		}
		group, rest = join(group, head), tail
	}
	if l := s.byKey[parent(key)]; l != nil {
		return fmt.Sprintf("%q is a setting, not a group", l.Key)
	}
	head, tail, deeper := strings.Cut(rest, ".")
	if near := nearest(head, s.groups[group]); near != "" {
		full := join(group, near)
		if deeper && s.groups[full] != nil {
			if s.byKey[join(full, tail)] != nil {
				full = join(full, tail)
			} else if n := nearest(tail, s.groups[full]); n != "" {
				full = join(full, n)
			}
		}
		return fmt.Sprintf("did you mean %q?", full)
	}
	last := key[strings.LastIndexByte(key, '.')+1:]
	var same []string
	for _, l := range s.leaves {
		if l.Key == last || strings.HasSuffix(l.Key, "."+last) {
			same = append(same, fmt.Sprintf("%q", l.Key))
		}
	}
	if len(same) > 0 && len(same) <= 4 {
		return "did you mean " + strings.Join(same, " or ") + "?"
	}
	if group == "" {
		return "known here: " + strings.Join(s.groups[group], ", ")
	}
	return fmt.Sprintf("known in %q: %s", group, strings.Join(s.groups[group], ", "))
}

// parent returns the group of a dotted key.
func parent(key string) string {
	if i := strings.LastIndexByte(key, '.'); i >= 0 {
		return key[:i]
	}
	return ""
}

// nearest returns the name with the least distance to s, the first of equals, or "" if none is
// near: within a third of its length or one edit, and never so far that no character of s is left.
func nearest(s string, names []string) string {
	if len(s) < 2 || len(s) > maxSuggest {
		return ""
	}
	best, most := "", max(1, len(s)/3)
	for _, n := range names {
		if d := distance(s, n); d <= most {
			best, most = n, d-1
		}
	}
	return best
}

// distance returns the number of edits from a to b, in bytes: insert, delete, replace, or swap two
// neighbours. (The optimal string alignment distance; row i holds the distances of a[:i] to every
// b[:j].)
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
