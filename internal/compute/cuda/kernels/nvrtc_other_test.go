//go:build !linux || !(amd64 || arm64)

package kernels

import (
	"errors"
	"runtime"
)

type nvrtc struct{ path string }

func openNVRTC() (*nvrtc, error) {
	return nil, errors.New("nvrtc: none for " + runtime.GOOS + "/" + runtime.GOARCH +
		": compile on linux")
}

func (n *nvrtc) version() string { return "" }

func (n *nvrtc) compile(string, map[string][]byte, ...string) ([]byte, error) {
	return nil, errors.New("nvrtc: not opened")
}
