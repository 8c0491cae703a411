// Package chattest is a terminal for tests.
package chattest

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal is the two ends of a terminal of so many columns: ours is the person, theirs the
// program. Where there are none, the test is skipped.
func Terminal(t testing.TB, columns uint16) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("NOT TESTED: no terminals here: ", err)
	}
	fd := int(ours.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: columns})
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Skip("NOT TESTED: no terminals here: ", err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}
