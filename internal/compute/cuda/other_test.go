//go:build !nvidia

package cuda

import (
	"errors"
	"strings"
	"testing"
)

func TestOpenSaysHow(t *testing.T) {
	be, err := Open(Options{})
	if be != nil || !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "-tags nvidia") {
		t.Errorf("%v, %v", be, err)
	}
}
