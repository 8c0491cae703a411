package cpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroupAvailable returns how many bytes of memory the control groups of this process leave it, of
// version 1 and 2, as a container has them: the least of limit - usage over its group and the
// groups above, where the page cache that can be dropped is no usage. ok is false where nothing
// limits it. root is the root of the file system.
func cgroupAvailable(root string) (n int64, ok bool) {
	groups := lines(filepath.Join(root, "proc/self/cgroup"))
	for _, mount := range lines(filepath.Join(root, "proc/self/mountinfo")) {
		// ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELD...] - TYPE SOURCE OPTIONS
		before, after, _ := strings.Cut(mount, " - ")
		at, fs := strings.Fields(before), strings.Fields(after)
		if len(at) < 5 || len(fs) < 3 {
			continue
		}
		files := cgroupFiles{"memory.max", "memory.current", "inactive_file"}
		controller := ""
		switch {
		case fs[0] == "cgroup2":
		case fs[0] == "cgroup" && listed(fs[2], "memory"):
			controller = "memory"
			files = cgroupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes",
				"total_inactive_file"}
		default:
			continue
		}
		for _, group := range groups { // ID:CONTROLLERS:PATH
			parts := strings.SplitN(group, ":", 3)
			if len(parts) < 3 || controller == "" && parts[1] != "" ||
				controller != "" && !listed(parts[1], controller) {
				continue
			}
			// What is mounted may be the group itself, or one above it.
			path, inside := strings.CutPrefix(parts[2], strings.TrimSuffix(at[3], "/"))
			if !inside || strings.Contains(path, "..") {
				path = "/"
			}
			for path = filepath.Join("/", path); ; path = filepath.Dir(path) {
				if left, limited := files.left(filepath.Join(root, at[4], path)); limited &&
					(!ok || left < n) {
					n, ok = left, true
				}
				if path == "/" {
					break
				}
			}
		}
	}
	return n, ok
}

// cgroupFiles are the names of a version's files, and of a line of memory.stat.
type cgroupFiles struct{ limit, usage, cache string }

// noLimit is a limit that stands for none, such as version 1 writes.
const noLimit = 1 << 60

// left returns what the limit of a group's folder leaves.
func (f cgroupFiles) left(dir string) (n int64, limited bool) {
	number := func(name string) (int64, bool) {
		all := lines(filepath.Join(dir, name))
		if len(all) == 0 {
			return 0, false
		}
		n, err := strconv.ParseInt(all[0], 10, 64)
		return n, err == nil // "max" is none
	}
	limit, ok := number(f.limit)
	if !ok || limit >= noLimit {
		return 0, false
	}
	usage, _ := number(f.usage)
	for _, line := range lines(filepath.Join(dir, "memory.stat")) {
		if text, ok := strings.CutPrefix(line, f.cache+" "); ok {
			cache, _ := strconv.ParseInt(text, 10, 64)
			usage = max(0, usage-cache)
		}
	}
	return max(0, limit-usage), true
}

// listed reports whether a list with commas has a word.
func listed(list, word string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if one == word {
			return true
		}
	}
	return false
}

// lines returns the lines of a small file of the system; nil if it cannot be read.
func lines(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
