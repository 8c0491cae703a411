//go:build nvidia

package driver

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ebitengine/purego"

	"gad/internal/compute/cuda/kernels"
)

// The program must start where there is no driver: nothing of CUDA may be linked, and the shim's
// names must not be seen by libraries that look for the driver's.
func TestNothingOfCUDALinked(t *testing.T) {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	if len(needed) == 0 {
		t.Fatal("no libraries at all: this is not a cgo build")
	}
	for _, name := range needed {
		if strings.Contains(name, "cuda") || strings.Contains(name, "cublas") {
			t.Errorf("needs %s", name)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "cuMem") || s.Name == "cuInit" {
			t.Errorf("dynamic symbol %s", s.Name)
		}
	}
}

// elsewhere runs one test of this binary in a process of its own, with these variables on top of an
// environment without LD_LIBRARY_PATH.
func elsewhere(t *testing.T, test string, env ...string) string {
	t.Helper()
	if os.Getenv("GAD_TEST_CHILD") != "" {
		t.Fatal("a child starts a child")
	}
	c := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.v")
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LD_LIBRARY_PATH=") {
			c.Env = append(c.Env, e)
		}
	}
	c.Env = append(append(c.Env, "GAD_TEST_CHILD=1"), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s in a child: %v\n%s", test, err, out)
	}
	return string(out)
}

// hostile makes a shared library from C in a folder of its own, under the driver's name.
func hostile(t *testing.T, source string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	c := filepath.Join(folder, "x.c")
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skipf("makes a library: %v", err)
	}
	out, err := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(folder, "libcuda.so.1"),
		c).CombinedOutput()
	if err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return folder
}

// TestOpenSays checks what Open says on machines that lack something.
func TestOpenSays(t *testing.T) {
	for _, name := range driverNames[1:] {
		if _, err := os.Stat(name); err == nil {
			t.Skipf("%s is on this machine", name)
		}
	}
	const symbols = `int cuGetErrorName(int c, const char **s) { *s = "CUDA_ERROR_X"; return 0; }
		int cuGetErrorString(int c, const char **s) { *s = "some text"; return 0; }
		int cuMemHostAlloc() { return 1; } int cuFuncSetAttribute() { return 1; } int cuStreamBeginCapture_v2() { return 1; }
		int cuStreamEndCapture() { return 1; } int cuStreamQuery() { return 1; } int cuGraphInstantiateWithFlags() { return 1; } int cuGraphLaunch() { return 1; }
		int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
		int cuDeviceGet(int *d, int i) { *d = i; return 0; }
		int cuDeviceGetName(char *s, int n, int d) { s[0] = 'T'; s[1] = '4'; s[2] = 0; return 0; }
		int cuDeviceTotalMem_v2(unsigned long *n, int d) { *n = 1 << 30; return 0; }
	`
	for _, c := range []struct {
		name, source string
		env          []string
		is           error
		says         []string
	}{
		{name: "no driver", is: ErrNoDriver, says: []string{"libcuda.so.1", "/usr/local/nvidia/lib64", `LD_LIBRARY_PATH is ""`, "install"}},
		{name: "not a driver", source: "int x;", is: ErrNoDriver, says: []string{"no cuInit"}},
		{name: "old driver", source: "int cuInit(int f) { return 0; }", is: ErrNoDriver,
			says: []string{"cuMemHostAlloc", "newer"}},
		{name: "cuInit fails", source: symbols + "int cuInit(int f) { return 803; }",
			is: ErrNoDriver, says: []string{"cuInit said 803 CUDA_ERROR_X: some text"}},
		{name: "cuInit finds no device", source: symbols + "int cuInit(int f) { return 100; }",
			is: ErrNoDevice, says: []string{"cuInit said 100", "nvidia-smi"}},
		{name: "no device", source: symbols +
			"int cuInit(int f) { return 0; } int cuDeviceGetCount(int *n) { *n = 0; return 0; }",
			env: []string{"CUDA_VISIBLE_DEVICES=7"}, is: ErrNoDevice, says: []string{"shows 0 devices", "CUDA 12.8", `"7"`}},
		{name: "old device", source: symbols + `int cuInit(int f) { return 0; } int cuDeviceGetCount(int *n) { *n = 1; return 0; }
			int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 7 : 5; return 0; }`,
			is: ErrTooOld, says: []string{"(T4)", "7.5", "8.0"}},
		{name: "no PTX", source: symbols + `int cuInit(int f) { return 0; } int cuDeviceGetCount(int *n) { *n = 1; return 0; }
			int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return 0; }`,
			env: []string{"GAD_TEST_NO_PTX=1"}, is: ErrTooOld, says: []string{"no PTX", "9.0"}},
		{name: "PTX refused", source: symbols + `#include <string.h>
			int cuInit(int f) { return 0; } int cuDeviceGetCount(int *n) { *n = 1; return 0; }
			int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 8 : 0; return 0; }
			int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)8; return 0; } int cuCtxSetCurrent(void *c) { return 0; }
			int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
			int cuModuleLoadDataEx(void **m, const char *image, unsigned n, int *opt, void **val) {
				for (unsigned i = 0; i < n; i++) if (opt[i] == 5) strcpy(val[i], "ptxas: line 1;\n  unsupported .version");
				return 222;
			}`, is: Result(222), says: []string{"CUDA 12.8", "ptxas: line 1; unsupported .version"}},
		{name: "no cuBLASLt", source: symbols + `int cuInit(int f) { return 0; } int cuDeviceGetCount(int *n) { *n = 1; return 0; }
			int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 8 : 0; return 0; }
			int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)8; return 0; } int cuCtxSetCurrent(void *c) { return 0; }
			int cuDevicePrimaryCtxRelease_v2(int d) { return 0; } int cuStreamSynchronize() { return 0; } int cuStreamDestroy_v2() { return 0; }
			int cuModuleLoadDataEx(void **m) { *m = (void *)16; return 0; } int cuModuleUnload() { return 0; }
			int cuStreamCreate(void **s, unsigned f) { *s = (void *)24; return 0; }`,
			env: []string{"GAD_CUBLASLT=/nonexistent/libcublasLt.so"}, is: ErrNoCuBLAS,
			says: []string{"/nonexistent/libcublasLt.so", "GAD_CUBLASLT", "12.8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := append([]string{"GAD_TEST_IS=" + strconv.Itoa(slices.Index(openErrors, c.is))},
				c.env...)
			if c.source != "" {
				env = append(env, "LD_LIBRARY_PATH="+hostile(t, c.source))
			}
			out := elsewhere(t, "TestOpenChild", env...)
			t.Log(out)
			if c.source == "" && strings.Contains(out, hasDriver) {
				t.Skip(hasDriver)
			}
			for _, s := range c.says {
				if !strings.Contains(out, s) {
					t.Errorf("does not say %q", s)
				}
			}
		})
	}
}

const hasDriver = "this machine has a driver in a place where the loader looks"

// TestOpenChild is TestOpenSays's child.
func TestOpenChild(t *testing.T) {
	is, ok := os.LookupEnv("GAD_TEST_IS")
	if !ok {
		t.Skip("runs in a child of TestOpenSays")
	}
	if os.Getenv("LD_LIBRARY_PATH") == "" {
		if _, err := purego.Dlopen("libcuda.so.1", purego.RTLD_LAZY|purego.RTLD_LOCAL); err == nil {
			t.Skip(hasDriver)
		}
	}
	d, err := Open(0, func(cc int) []byte {
		if os.Getenv("GAD_TEST_NO_PTX") != "" {
			return nil
		}
		return []byte("ptx")
	})
	if err == nil || d != nil {
		t.Fatalf("Open: %v, %v", d, err)
	}
	t.Log(err)
	if strings.Contains(err.Error(), "\n") {
		t.Error("an error of more than one line")
	}
	for i, e := range openErrors {
		if got, want := errors.Is(err, e), strconv.Itoa(i) == is; got != want {
			t.Errorf("wraps %v: %v, not %v", e, got, want)
		}
	}
}

// openErrors are what TestOpenSays sees; a child is told by its index which to expect.
var openErrors = []error{ErrNoDriver, ErrNoDevice, ErrTooOld, ErrNoCuBLAS, Result(222)}

// device opens the machine's first device, emulated or not, and enters it for the test.
func device(t testing.TB) *Device {
	t.Helper()
	d, err := Open(0, kernels.PTX)
	if errors.Is(err, ErrNoDriver) || errors.Is(err, ErrNoDevice) {
		t.Skipf("needs a device: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	leave := d.Enter()
	t.Cleanup(func() {
		leave()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestInfo(t *testing.T) {
	d := device(t)
	i := d.Info()
	t.Logf("%+v", i)
	if i.Name == "" || i.Major < 8 || i.SMs < 1 || i.Memory < 64<<20 || i.Driver < 11040 ||
		i.SharedPerBlock < 96<<10 || i.CuBLAS == "" {
		t.Errorf("%+v", i)
	}
	free, total := d.Free()
	if free <= 0 || total < free {
		t.Errorf("%d of %d bytes free", free, total)
	}
	if _, err := Open(1<<20, kernels.PTX); !errors.Is(err, ErrNoDevice) {
		t.Errorf("device %d: %v", 1<<20, err)
	}
}

// Any goroutine may work on the device once it has entered, and entering nests.
func TestEnter(t *testing.T) {
	d := device(t)
	errs := make(chan error)
	for range 4 {
		go func() {
			// and never unlocked: the thread ends with the goroutine, so each has its own
			runtime.LockOSThread()
			leave := d.Enter()
			inner := d.Enter()
			inner()
			_, err := d.Event() // needs a current context
			leave()
			errs <- err
		}()
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
