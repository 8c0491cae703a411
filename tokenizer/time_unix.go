//go:build unix

package tokenizer

import (
	"syscall"
	"time"
)

// usedTime returns the processor time that the program has used, negative after an error.
func usedTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return -1
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
