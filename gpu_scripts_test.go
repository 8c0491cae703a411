package gad_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// scripts/gpu/check.sh and bench.sh as they run where there is a GPU, but with programs that only
// say what they were given, and without nvidia-smi. They must find a cuBLASLt that only Python's
// packages have, whatever LD_LIBRARY_PATH is; run all sections, whatever one of them does; keep to
// their time; and leave a log with an end.
func TestGPUScripts(t *testing.T) {
	for _, tool := range []string{"bash", "xz", "tar", "awk", "timeout"} {
		if _, err := exec.LookPath(tool); err != nil || runtime.GOOS != "linux" {
			t.Skipf("needs %s, on Linux", tool)
		}
	}
	dir := t.TempDir()
	path := func(parts ...string) string {
		return filepath.Join(
			append([]string{dir}, parts...)...)
	}
	write := func(text string, parts ...string) {
		t.Helper()
		name := path(parts...)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(script string, env ...string) (said string, code int) {
		t.Helper()
		c := exec.Command("bash", "-euo", "pipefail", "-c", script)
		for _, e := range os.Environ() {
			if !strings.HasPrefix(e, "GAD_") && !strings.HasPrefix(e, "CUDA_") &&
				!strings.HasPrefix(e, "OUT=") {
				c.Env = append(c.Env, e)
			}
		}
		c.Env = append(append(c.Env, "PATH="+path("bin")+":"+os.Getenv("PATH"), "TMPDIR="+dir,
			"LD_LIBRARY_PATH="+path("driver")), env...)
		out, _ := c.CombinedOutput()
		return string(out), c.ProcessState.ExitCode()
	}

	const program = "#!/bin/sh\necho \"cuBLASLt: $GAD_CUBLASLT\"\n"
	write("built by a test\n", "work", "built.txt")
	write(program+"exit 1\n", "work", "internal", "compute", "cuda", "driver", "test")
	write(program, "work", "internal", "compute", "cuda", "test")
	write(program, "work", "model", "test")
	write("#!/bin/sh\necho \"within $2 s\"\nshift 2\nexec \"$@\"\n", "bin", "timeout")
	write("#!/bin/sh\ncase \"$2\" in *purelib*) echo '"+path("packages")+"' ;; *) exit 1 ;; esac\n",
		"bin", "python3")
	write("#!/bin/sh\n", "bin", "ldconfig")
	write("#!/bin/sh\nexit 9\n", "bin", "nvidia-smi")
	write("", "packages", "nvidia", "cublas", "lib", "libcublasLt.so.12")
	write("", "packages", "nvidia", "cu13", "lib", "libcublasLt.so.13")
	write("", "driver", "libcuda.so.1")
	write("", "libnccl.so.2")
	for _, name := range []string{"check.sh", "bench.sh", "log.sh"} {
		// so that go test's cache knows of it
		text, err := os.ReadFile(filepath.Join("scripts", "gpu", name))
		if err != nil {
			t.Fatal(err)
		}
		write(string(text), "build", name)
	}
	if said, code := run("mkdir '" + path("out") + "' && cd '" + path("work") +
		"' && tar cf - . | xz >'" + path("build") + "/gad-gpu.tar.xz'"); code != 0 {
		t.Fatal(said)
	}

	check := path("build") + "/check.sh " + path("build") + " "
	said, code := run(check+"fragments driver nccl model", "OUT="+path("out"), "GAD_SECONDS=275",
		"GAD_NCCL="+path("libnccl.so.2"))
	if code != 1 {
		t.Errorf("exit status %d, want 1:\n%s", code, said)
	}
	for _, want := range []string{
		"cuBLASLt: " + path("packages", "nvidia", "cu13", "lib", "libcublasLt.so.13") + "\n",
		"### fragments: pass", "### driver: FAIL: exit status 1", "### nccl: FAIL: exit status 1",
		"### nccl, two ranks: not run: there is 0 GPU",
		"### model: pass", "**Failed: driver nccl.**",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("does not say %q:\n%s", want, said)
		}
	}
	logs, _ := filepath.Glob(path("out", "*.log"))
	if len(logs) != 1 {
		t.Fatalf("logs: %v", logs)
	}
	text, err := os.ReadFile(logs[0])
	if err != nil || !strings.Contains(string(text), "**Failed: driver nccl.**") ||
		!strings.Contains(string(text), "within 60 s") {
		t.Errorf("the log: %v\n%s", err, text)
	}
	if strings.Contains(string(text), "within 300 s") || !regexp.MustCompile(`within 2\d\d s`).Match(text) { // of the 300 that model may take
		t.Errorf("the time for all is not kept to:\n%s", text)
	}
	if said, code := run(check+"model", "OUT="+path("out"), "GAD_SECONDS=20"); code != 1 ||
		!strings.Contains(said, "### model: FAIL: not run: nothing is left of 20 s") {
		t.Errorf("exit status %d without time:\n%s", code, said)
	}

	// At the same time: the log has all of them, in order, and the same verdict.
	together := path("together.md")
	said, code = run(check+"fragments driver model", "GAD_TOGETHER=1", "GAD_LOG="+together)
	text, err = os.ReadFile(together)
	order := regexp.MustCompile(`(?s)### fragments: pass.*### driver: FAIL.*### model: pass.*\*\*Failed: driver\.\*\*`)
	if code != 1 || err != nil || !order.Match(text) {
		t.Errorf("together: exit status %d, %v:\n%s\n%s", code, err, said, text)
	}

	bench := path("build") + "/bench.sh " + path("build") + " "
	if said, code := run(bench+"driver gemm nccl", "OUT="+path("out")); code != 1 ||
		!strings.Contains(said, "### nccl: not run: there is 0 GPU") ||
		!strings.Contains(said, "**Failed: driver.**") || strings.Contains(said, "bench.sh: line") {
		t.Errorf("bench.sh: exit status %d:\n%s", code, said)
	}

	// A driver that is too old for the newest; one that the loader finds.
	write("#!/bin/sh\necho 550.54.14\n", "bin", "nvidia-smi")
	if said, _ := run(check+"fragments", "OUT="+path("out")); !strings.Contains(said,
		"cublas/lib/libcublasLt.so.12\n") {
		t.Errorf("with a driver of CUDA 12:\n%s", said)
	}
	write("", "driver", "libcublasLt.so.12")
	if said, _ := run(check+"fragments", "OUT="+path("out")); strings.Contains(said, "packages") {
		t.Errorf("the loader finds one, and another is named:\n%s", said)
	}

	// What cannot be unpacked is said, in the log too.
	write("no archive", "build", "gad-gpu.tar.xz")
	if said, code := run(check+"fragments", "OUT="+path("out")); code == 0 ||
		!strings.Contains(said, "**check.sh ended early, with status") {
		t.Errorf("exit status %d:\n%s", code, said)
	}
}
