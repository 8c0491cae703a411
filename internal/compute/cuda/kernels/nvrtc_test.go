//go:build linux && (amd64 || arm64)

package kernels

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// nvrtc is NVIDIA's run-time compiler, opened as a library. Its documentation is
// "NVRTC (Runtime Compilation)" in the CUDA toolkit; results are nvrtcResult, 0
// for success.
type nvrtc struct {
	path         string
	major, minor int32

	create      func(prog *uintptr, source, name *byte, headers int32, sources, names **byte) int32
	compileProg func(prog uintptr, options int32, option **byte) int32
	ptxSize     func(prog uintptr, n *uintptr) int32
	ptx         func(prog uintptr, to *byte) int32
	logSize     func(prog uintptr, n *uintptr) int32
	log         func(prog uintptr, to *byte) int32
	destroy     func(prog *uintptr) int32
	errorString func(result int32) string
}

// openNVRTC opens $GAD_NVRTC, or else what the loader finds by name. The error
// says where it looked.
func openNVRTC() (*nvrtc, error) {
	at := []string{"libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so.12"}
	if named := os.Getenv("GAD_NVRTC"); named != "" {
		at = []string{named}
	}
	var tried []string
	for _, path := range at {
		lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			tried = append(tried, err.Error())
			continue
		}
		n := nvrtc{path: path}
		var version func(major, minor *int32) int32
		for name, f := range map[string]any{"nvrtcVersion": &version,
			"nvrtcCreateProgram": &n.create, "nvrtcCompileProgram": &n.compileProg,
			"nvrtcGetPTXSize": &n.ptxSize, "nvrtcGetPTX": &n.ptx,
			"nvrtcGetProgramLogSize": &n.logSize, "nvrtcGetProgramLog": &n.log,
			"nvrtcDestroyProgram": &n.destroy, "nvrtcGetErrorString": &n.errorString} {
			purego.RegisterLibFunc(f, lib, name)
		}
		if r := version(&n.major, &n.minor); r != 0 {
			return nil, fmt.Errorf("nvrtc: %s: version: %s", path, n.errorString(r))
		}
		return &n, nil
	}
	return nil, fmt.Errorf("nvrtc: not found: %s: run scripts/gpu/toolchain.sh --fetch, or name the library in GAD_NVRTC", strings.Join(tried, "; "))
}

func (n *nvrtc) version() string { return fmt.Sprintf("%d.%d", n.major, n.minor) }

// compile makes PTX of the source named main; what it includes comes from
// sources too, never from a disk. NVRTC has no option that turns warnings into
// errors, so any message is one.
func (n *nvrtc) compile(main string, sources map[string][]byte, options ...string) ([]byte, error) {
	var prog uintptr
	var texts, names []*byte
	for name, text := range sources {
		texts, names = append(texts, cString(string(text))), append(names, cString(name))
	}
	if r := n.create(&prog, cString(string(sources[main])), cString(main), int32(len(names)),
		&texts[0], &names[0]); r != 0 {
		return nil, fmt.Errorf("nvrtc: %s: %s", main, n.errorString(r))
	}
	defer n.destroy(&prog)
	var option []*byte
	for _, o := range options {
		option = append(option, cString(o))
	}
	result := n.compileProg(prog, int32(len(option)), &option[0])
	runtime.KeepAlive(texts)
	runtime.KeepAlive(names)
	runtime.KeepAlive(option)
	said, err := n.text(prog, n.logSize, n.log)
	if err != nil {
		return nil, err
	}
	if result != 0 || len(said) > 0 {
		return nil, fmt.Errorf("nvrtc %s: %s: %s: warnings count as errors\n%s", n.version(), main,
			n.errorString(result), said[:min(len(said), 8<<10)])
	}
	return n.text(prog, n.ptxSize, n.ptx)
}

// text fetches one of the results that come as a size and a zero-terminated text.
func (n *nvrtc) text(prog uintptr, size func(uintptr, *uintptr) int32,
	get func(uintptr, *byte) int32) ([]byte, error) {
	var bytes uintptr
	if r := size(prog, &bytes); r != 0 {
		return nil, fmt.Errorf("nvrtc: size of a result: %s", n.errorString(r))
	}
	if bytes <= 1 {
		return nil, nil
	}
	to := make([]byte, bytes)
	if r := get(prog, &to[0]); r != 0 {
		return nil, fmt.Errorf("nvrtc: result: %s", n.errorString(r))
	}
	return to[:bytes-1], nil
}

func cString(s string) *byte { return &append([]byte(s), 0)[0] }
