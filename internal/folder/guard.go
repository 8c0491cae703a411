package folder

import (
	"errors"
	"runtime/debug"
)

var errCut = errors.New("its file was cut short while it was read")

// Guard runs f, which reads memory of [Map] on this goroutine. It returns an error where the file
// was truncated meanwhile: reading such a page would otherwise end the program.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r)
			}
			err = errCut
		}
	}()
	return f()
}
