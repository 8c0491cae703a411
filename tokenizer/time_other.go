//go:build !unix

package tokenizer

import "time"

// usedTime is processTime.
func usedTime() time.Duration { return -1 }
