//go:build !amd64 && !arm64

package cpu

var peaks map[string]func(n int)
