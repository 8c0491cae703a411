package cpu

import (
	"fmt"
	"syscall"
)

// allowTiles asks Linux (5.16 and later) for leave to use AMX's tiles, for all present
// and future threads of the process. It is refused where some
// thread's stack for signals is too small for a frame with tiles in it, some 12 KB:
// Go's have 32 KB.
func allowTiles() error {
	const request, tileData = 0x1023, 18 // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
	if _, _, e := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, request, tileData, 0); e != 0 {
		return fmt.Errorf("arch_prctl(ARCH_REQ_XCOMP_PERM, %d): %w", tileData, e)
	}
	return nil
}
