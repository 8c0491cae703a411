//go:build !unix

package tokenizer

import "time"

// usedTime returns -1: these systems do not provide the processor time used.
func usedTime() time.Duration { return -1 }
