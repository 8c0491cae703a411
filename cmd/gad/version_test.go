package main

import (
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestDescribeBuild(t *testing.T) {
	const hash = "0917cb0d6f5e4c3b2a19080706050403020100ff"
	set := func(pairs ...string) (s []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			s = append(s, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return s
	}
	linux := []string{"GOOS", "linux", "GOARCH", "arm64"}
	for _, c := range []struct {
		main            string
		settings        []debug.BuildSetting
		version, commit string
		want            string
	}{
		{"(devel)", set(linux...), "", "", "development build (go1.26.0, linux/arm64)"},
		{"(devel)", set(append(linux, "vcs.revision", hash, "vcs.modified", "false")...), "", "",
			"development build (commit 0917cb0d6f5e, go1.26.0, linux/arm64)"},
		{"v0.0.0-20261122095407-0917cb0d6f5e+dirty",
			set(append(linux, "vcs.revision", hash, "vcs.modified", "true")...), "", "",
			"development build (commit 0917cb0d6f5e, modified, go1.26.0, linux/arm64)"},
		{"v1.2.3", set(linux...), "", "", "v1.2.3 (go1.26.0, linux/arm64)"},
		{"(devel)", set(append(linux, "-tags", "nvidia")...), "v2.0.0", "0917cb0d6f5e-modified",
			"v2.0.0 (commit 0917cb0d6f5e-modified, go1.26.0, linux/arm64, with CUDA)"},
	} {
		info := &debug.BuildInfo{GoVersion: "go1.26.0", Settings: c.settings}
		info.Main.Version = c.main
		if got := describeBuild(info, c.version, c.commit); got != c.want {
			t.Errorf("%s: %q, want %q", c.main, got, c.want)
		}
	}
}

func TestVersion(t *testing.T) {
	want := regexp.MustCompile(`^gad version .+ \(.*` + regexp.QuoteMeta(runtime.Version()+", "+runtime.GOOS+"/"+runtime.GOARCH) + `\)\n$`)
	for _, flag := range []string{"--version", "-v"} {
		code, out, said := gad(flag)
		if code != exitDone || said != "" || !want.MatchString(out) {
			t.Errorf("gad %s: exit status %d, prints %q, says %q; want a match of %s", flag, code,
				out, said, want)
		}
	}
	// A command's help must not have taken it over: sft --version is a mistake.
	refused(t, exitUsage, "gad: sft: unknown flag --version: see gad sft --help", "sft",
		"--version")
}

// A release's build says what it was told.
func TestVersionOfRelease(t *testing.T) {
	out, err := exec.Command(built(t), "--version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "gad version v9.8.7 (commit 0123456789ab, ") {
		t.Errorf("%q, %v", out, err)
	}
}
