package cpu

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// TestLargePages: the pages in the middle of a large block are advised to be large ones.
func TestLargePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil {
		t.Skipf("NOT TESTED: this kernel has no large pages: %v", err)
	}
	x := aligned(4 * hugePage)
	at := uint64(uintptr(unsafe.Pointer(&x[len(x)/2])))
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Skipf("NOT TESTED: %v", err)
	}
	defer f.Close()
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var lo, hi uint64
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &lo, &hi); n == 2 {
			inside = lo <= at && at < hi
		}
		if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && inside {
			if !strings.Contains(flags, " hg") {
				t.Errorf("the block's pages have the flags%s: want hg, advised to be large", flags)
			}
			return
		}
	}
	t.Errorf("no mapping of /proc/self/smaps holds %#x", at)
}
