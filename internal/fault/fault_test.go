package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"gad/internal/fault"
)

// A mark is found through wraps, hides nothing below it and adds no text.
func TestMarks(t *testing.T) {
	err := fmt.Errorf("over: %w",
		fault.As(fault.ErrRunning, fmt.Errorf("disk: %w", fs.ErrNotExist)))
	if err.Error() != "over: disk: file does not exist" || !errors.Is(err, fault.ErrRunning) ||
		!errors.Is(err, fs.ErrNotExist) || errors.Is(err, fault.ErrUsage) {
		t.Errorf("%v", err)
	}
	if err := fault.Usagef("--n %d: %w", 3,
		fs.ErrExist); err.Error() != "--n 3: file already exists" ||
		!errors.Is(err, fault.ErrUsage) || !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
}
