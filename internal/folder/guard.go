package folder

import (
	"errors"
	"runtime/debug"
)

var errCut = errors.New("its file was cut short while it was read")

// Guard runs f, which reads memory of [Map] on this goroutine. A page that has gone from
// the file, which would end the program, is an error.
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
