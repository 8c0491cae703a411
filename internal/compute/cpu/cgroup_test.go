package cpu

import (
	"os"
	"path/filepath"
	"testing"
)

// A container's limit counts, of both versions of control groups, of its group and of those above,
// wherever they are mounted; the page cache that can be dropped is free.
func TestMemoryOfControlGroups(t *testing.T) {
	const (
		v2   = "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
		v1   = "30 1 0:22 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
		info = "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"
	)
	for name, c := range map[string]struct {
		mounts, groups string
		files          map[string]string
		want           int64
	}{
		"none": {"", "", nil, 8000 << 10},
		"v2, no limit": {v2, "0::/a\n", map[string]string{"a/memory.max": "max\n",
			"a/memory.current": "100\n"}, 8000 << 10},
		"v2": {v2, "0::/a/b\n", map[string]string{"a/b/memory.max": "1000\n",
			"a/b/memory.current": "700\n", "a/b/memory.stat": "anon 5\ninactive_file 200\n"}, 500},
		"v2, above": {v2, "0::/a/b\n", map[string]string{"a/b/memory.max": "5000\n",
			"a/b/memory.current": "700\n", "a/memory.max": "4000\n",
			"a/memory.current": "3000\n"}, 1000},
		"v2, above the machine": {v2, "0::/a\n", map[string]string{"a/memory.max": "90000000\n",
			"a/memory.current": "0\n"}, 8000 << 10},
		"v2, a name space": {v2, "0::/\n", map[string]string{"memory.max": "1000\n",
			"memory.current": "400\n"}, 600},
		"v2, outside of what is mounted": {v2, "0::/../x\n", map[string]string{
			"memory.max": "1000\n", "memory.current": "400\n"}, 600},
		"v2, over its limit": {v2, "0::/\n", map[string]string{"memory.max": "1000\n",
			"memory.current": "1400\n"}, 1},
		"v1, no limit": {v1, "4:memory:/a\n", map[string]string{
			"memory/a/memory.limit_in_bytes": "9223372036854771712\n",
			"memory/a/memory.usage_in_bytes": "5\n"}, 8000 << 10},
		"v1": {v1, "5:cpu:/z\n4:memory:/a\n0::/\n", map[string]string{
			"memory/a/memory.limit_in_bytes": "1000\n", "memory/a/memory.usage_in_bytes": "900\n",
			"memory/a/memory.stat": "cache 800\ntotal_inactive_file 300\n"}, 400},
		"v1, mounted below": {
			"30 1 0:22 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"4:memory:/docker/x\n", map[string]string{"memory/memory.limit_in_bytes": "1000\n",
				"memory/memory.usage_in_bytes": "100\n"}, 900},
	} {
		root := t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/meminfo", info)
		write("proc/self/mountinfo", "1 0 0:1 / / rw - ext4 /dev/x rw\n"+c.mounts)
		write("proc/self/cgroup", c.groups)
		for file, text := range c.files {
			write(filepath.Join("sys/fs/cgroup", file), text)
		}
		if got := memoryAvailable(root); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
	if got := memoryAvailable(t.TempDir()); got != 0 {
		t.Errorf("a system that says nothing: %d", got)
	}
}
